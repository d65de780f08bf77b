# SPDX-License-Identifier: Apache-2.0
"""What the exit status of ``dispatch`` means: one number for each answer to "what now?".

Every verb ends through here, and ``docs/command.md`` shows the same table. Nothing is decided about a job.
"""

from __future__ import annotations

from enum import IntEnum

from airflow_provider_dispatch import exceptions as errors


class ExitCode(IntEnum):
    """The exit status of a verb."""

    OK = 0
    FAILED = 1
    USAGE = 2
    RETRY = 3
    REFUSED = 4
    NOT_READY = 5
    UNREADABLE = 6
    INTERRUPTED = 130


CODE_OF_ERROR: dict[type[errors.DispatchError], ExitCode] = {
    errors.JobFailedError: ExitCode.FAILED,
    errors.SpecError: ExitCode.USAGE,
    errors.UnavailableError: ExitCode.RETRY,
    errors.RefusedError: ExitCode.REFUSED,
    errors.ConflictError: ExitCode.REFUSED,
    errors.StaleHoldError: ExitCode.REFUSED,
    errors.JobNotFoundError: ExitCode.REFUSED,
    errors.CapabilityError: ExitCode.NOT_READY,
    errors.NotInstalledError: ExitCode.NOT_READY,
    errors.ProtocolError: ExitCode.UNREADABLE,
}
"""The nearest class that stands here counts."""


def derive_exit_code(error: errors.DispatchError) -> ExitCode:
    """The exit status of a call that ended with *error*; an error of no known kind is a refusal."""
    return next((CODE_OF_ERROR[kind] for kind in type(error).__mro__ if kind in CODE_OF_ERROR), ExitCode.REFUSED)
