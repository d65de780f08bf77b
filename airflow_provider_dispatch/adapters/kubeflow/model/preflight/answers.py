# SPDX-License-Identifier: Apache-2.0
"""The three answers of a check. Every check ends with one of them; what isn't yes has a cure, in one line."""

from __future__ import annotations

from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import Unseen
from airflow_provider_dispatch.core.capabilities import Answer, Finding, Source


def confirm(reason: str, *, is_probed: bool = True) -> Finding:
    """It is so.

    :param is_probed: seen on the cluster; otherwise the connection or we ourselves say so.
    """
    return Finding(Answer.YES, Source.PROBED if is_probed else Source.DECLARED, reason)


def refute(reason: str, cure: str) -> Finding:
    """It is not so."""
    return Finding(Answer.NO, Source.PROBED, reason, cure)


def doubt(reason: str, cure: str) -> Finding:
    """Nobody knows."""
    return Finding(Answer.UNKNOWN, Source.PROBED, reason, cure)


def doubt_unseen(what: str, unseen: Unseen) -> Finding:
    """It could not be looked at."""
    return doubt(f"{what} can't be looked at: {unseen.said}", "mend what the lines above it say, and look again")
