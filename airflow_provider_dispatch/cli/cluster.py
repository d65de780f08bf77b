# SPDX-License-Identifier: Apache-2.0
"""Which cluster the groups `setup`, `queue` and `fence` mean, and how they show what they did to it.

They may come before any connection exists: where neither a connection nor a settings file names a cluster, it is that
of the kubeconfig.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from airflow_provider_dispatch.adapters.kubeflow.setup.terms import NAME, SetupTerms
from airflow_provider_dispatch.adapters.registry import build_keeper
from airflow_provider_dispatch.cli.screen import View
from airflow_provider_dispatch.cli.session import Session
from airflow_provider_dispatch.cli.settings import LOCAL_BACKEND

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.kubeflow.setup.applying import Result
    from airflow_provider_dispatch.adapters.kubeflow.setup.keeper import ClusterKeeper

CLUSTER_BACKEND = "kubeflow"
CLUSTER_PANEL = "Which cluster, unless a connection or settings say so"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options of every verb that looks after a cluster."""

    kubeconfig: Annotated[
        Path | None, Option(help="Default: that of kubectl, or the pod's own.", rich_help_panel=CLUSTER_PANEL)
    ] = None
    context: Annotated[str | None, Option(help="Of the kubeconfig.", rich_help_panel=CLUSTER_PANEL)] = None
    instance: Annotated[
        str,
        Option(
            help="Which installation: all its names begin with this, so that a second one may stand beside the first.",
            rich_help_panel=CLUSTER_PANEL,
        ),
    ] = NAME

    def open_keeper(self, session: Session, **more: object) -> ClusterKeeper:
        """Enter it to connect.

        :param more: further settings; None leaves what the session says.
        """
        is_local = session.settings.backend == LOCAL_BACKEND
        fields: Mapping[str, object] = {} if is_local else session.settings.fields
        given = {"kubeconfig": str(self.kubeconfig) if self.kubeconfig else None, "context": self.context, **more}
        given = {name: value for name, value in given.items() if value is not None}
        if self.instance != NAME:
            given |= SetupTerms((), name=self.instance).names
        return build_keeper(CLUSTER_BACKEND if is_local else session.settings.backend, {**fields, **given})


def view_results(results: Sequence[Result], notes: Sequence[str] = ()) -> View:
    """What became of each object."""
    plain = [{"object": one.object, "outcome": one.outcome.value, "detail": one.detail} for one in results]
    rows = [(one.outcome.value, one.object, one.detail) for one in results]
    return View(plain, ("OUTCOME", "OBJECT", "DETAIL"), rows, notes or (() if rows else ("nothing to do",)))


def tell_result(session: Session, result: Result) -> None:
    """Say at once what became of one, to a person who waits."""
    session.screen.tell_progress(f"{result.outcome.value}: {result.object}")
