# SPDX-License-Identifier: Apache-2.0
"""What a backend has been proved to do, and what preflight found. A property of the cluster, not of the adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
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
    """An answer with its source and a reason that names what was seen.

    :param cure: what somebody can do about it; empty where there is nothing to mend.
    """

    value: Answer
    source: Source
    reason: str
    cure: str = ""

    @property
    def is_yes(self) -> bool:
        """It is so, and somebody or something says so."""
        return self.value is Answer.YES

    @property
    def advice(self) -> str:
        """The reason, and the cure where there is one."""
        return f"{self.reason}; {self.cure}" if self.cure else self.reason


@dataclass(frozen=True, slots=True)
class Preflight:
    """The outcome of a preflight.

    :param checks: by name, in the order they ran.
    :param checked_at: when it began; None when it isn't known.
    """

    checks: Mapping[str, Finding]
    capabilities: Mapping[Capability, Finding]
    checked_at: datetime | None = None

    @property
    def is_proved(self) -> bool:
        """All that a job needs was proved, and no check said no. What is unknown and not needed doesn't count."""
        return may_start(self.capabilities) and all(check.value is not Answer.NO for check in self.checks.values())


def may_start(capabilities: Mapping[Capability, Finding]) -> bool:
    """Whether each of the four required capabilities is proved."""
    return explain_unproved(capabilities) is None


def check_may_start(capabilities: Mapping[Capability, Finding]) -> None:
    """Refuse to start anything on a backend that is not proved.

    :raises CapabilityError: one of the four required capabilities is not ``yes``; the message says why, and the cure.
    """
    if said := explain_unproved(capabilities):
        raise CapabilityError(said)


def check_proved(found: Preflight, now: datetime) -> None:
    """The same for the outcome of a preflight; the message has each of its lines that isn't ``yes``, and its age.

    :raises CapabilityError: one of the four required capabilities is not ``yes``.
    """
    if said := explain_unproved(found.capabilities):
        lines = [f"{name}: {check.value}: {check.advice}" for name, check in found.checks.items() if not check.is_yes]
        raise CapabilityError("\n".join([f"{said} ({describe_age(found, now)})", *lines]))


def explain_unproved(capabilities: Mapping[Capability, Finding]) -> str | None:
    """Which required capability is not ``yes``, and why; None when all are."""
    for capability in REQUIRED:
        finding = capabilities.get(capability, Finding(Answer.UNKNOWN, Source.DECLARED, "preflight says nothing of it"))
        if not finding.is_yes:
            return f"{capability} is {finding.value} ({finding.source}): {finding.advice}"
    return None


def describe_age(found: Preflight, now: datetime) -> str:
    """For instance ``checked 40 s ago``."""
    if found.checked_at is None:
        return "checked at an unknown time"
    return f"checked {max((now - found.checked_at).total_seconds(), 0.0):.0f} s ago"
