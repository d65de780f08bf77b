# SPDX-License-Identifier: Apache-2.0
"""What a backend has been proved to do, and what preflight found. A property of the cluster, not of the adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_dispatch.exceptions import CapabilityError


class Capability(StrEnum):
    """Things a backend may be able to do; the first four are needed to start anything."""

    READMISSION_GATE = "readmission_gate"
    ATTEMPT_INJECTION = "attempt_injection"
    HOLD = "hold"
    START_GATE = "start_gate"
    POD_FENCE = "pod_fence"
    LOGS = "logs"
    QUEUE_POSITION = "queue_position"
    PROGRESS = "progress"
    MEMORY_LIMIT = "memory_limit"


REQUIRED = (Capability.READMISSION_GATE, Capability.ATTEMPT_INJECTION, Capability.HOLD, Capability.START_GATE)


class Answer(StrEnum):
    """Whether something is so; unknown counts as no where it matters."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """Seen on the backend itself, or stated by its configuration or by us."""

    PROBED = "probed"
    DECLARED = "declared"


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer with its source and a reason that names what was seen."""

    value: Answer
    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class Preflight:
    """The outcome of a preflight.

    :param checks: by name, in the order they ran.
    """

    checks: Mapping[str, Finding]
    capabilities: Mapping[Capability, Finding]


def check_may_start(capabilities: Mapping[Capability, Finding]) -> None:
    """Refuse to start anything on a backend that is not proved.

    :raises CapabilityError: one of the four required capabilities is not ``yes``; the message says why.
    """
    for capability in REQUIRED:
        finding = capabilities.get(capability, Finding(Answer.UNKNOWN, Source.DECLARED, "preflight says nothing of it"))
        if finding.value is not Answer.YES:
            raise CapabilityError(f"{capability} is {finding.value} ({finding.source}): {finding.reason}")
