# SPDX-License-Identifier: Apache-2.0
"""Every error of the provider. The type alone answers "may I try the same call again?".

::

    DispatchError
    ├── SpecError                 no   a wrong value; raised before anything is written
    ├── ProtocolError             no   a message or record that cannot be read
    ├── AdapterError
    │   ├── UnavailableError      yes  the backend did not answer, or not in time
    │   ├── RefusedError          no   the backend understood and said no
    │   ├── CapabilityError       no   the backend lacks, or has not proved, what the call needs
    │   ├── ConflictError         no   somebody else changed or owns what the call is about
    │   ├── StaleHoldError        no   a hold that this job never had
    │   ├── JobNotFoundError      no   a call that needs an existing job named an unknown one
    │   └── NotInstalledError     no   an optional part of the provider is not installed
    └── JobFailedError            no   the job ended other than well; one class a cause
        ├── JobPreemptedError · NodeLostError · JobOutOfMemoryError · JobEvictedError
        ├── JobTimeoutError · NoCapacityError · JobImageError · JobExitedError
        ├── JobMisconfiguredError · JobDependencyError · JobStoppedError · JobDeletedError
        └── JobFailedUnknownError

Raised by every layer; imports nothing of the package at run time. A *state* of a job is never an exception of an
adapter: only the callers above it turn an ended job into a :class:`JobFailedError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from airflow_provider_dispatch.core.diagnosis import Diagnosis
    from airflow_provider_dispatch.core.observation import Observation

LONGEST_TEXT = 500


def cut_text(text: str, limit: int = LONGEST_TEXT) -> str:
    """Shorten text that came from outside to *limit* characters, saying how much is missing."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def _show(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # a number of thousands of digits
        return f"<{type(value).__name__} too long to show>"


class DispatchError(Exception):
    """Root of all errors of this provider."""

    is_retryable: ClassVar[bool] = False


class SpecError(DispatchError, ValueError):
    """A value that can't be right, found before anything was written.

    :param field: dotted path of the field, for instance ``roles[0].nodes``.
    :param problem: what is wrong with it and what to do.
    :param value: the offending value; leave it out where it may be secret.
    """

    def __init__(self, field: str, problem: str, value: object = None) -> None:
        shown = "" if value is None else f" = {cut_text(_show(value), 120)}"
        super().__init__(f"{field}{shown}: {problem}")
        self.field, self.problem, self.value = field, problem, value

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, str, object]]:
        # Errors cross process borders; the default would call the class with the finished message alone.
        return type(self), (self.field, self.problem, self.value)


class ProtocolError(DispatchError):
    """A message, cursor or stored record that this version can't read."""


class AdapterError(DispatchError):
    """Something went wrong between an adapter and its backend."""


class UnavailableError(AdapterError):
    """No answer, or none in time. The same call may be made again."""

    is_retryable = True


class RefusedError(AdapterError):
    """The backend said no: a permission, a validation, or a job that has ended."""


class CapabilityError(AdapterError):
    """The backend lacks something the call needs, or has not proved it."""


class ConflictError(AdapterError):
    """Another caller's submission, owner or spec stands where this one wanted to be."""


class StaleHoldError(AdapterError):
    """The hold named was never placed on this job."""


class JobNotFoundError(AdapterError):
    """The call needs an existing job and there is none of that name."""


class NotInstalledError(AdapterError):
    """An optional part is missing; the message names the extra to install."""


class JobFailedError(DispatchError):
    """The job ended other than well.

    :param message: the diagnosis in words.
    :param observation: the last state seen, if any.
    :param diagnosis: cause, evidence and advice.
    """

    def __init__(
        self, message: str, *, observation: Observation | None = None, diagnosis: Diagnosis | None = None
    ) -> None:
        super().__init__(message)
        self.observation, self.diagnosis = observation, diagnosis


class JobPreemptedError(JobFailedError):
    """Preempted more often than its spec allows."""


class NodeLostError(JobFailedError):
    """The machine its processes ran on went away."""


class JobOutOfMemoryError(JobFailedError):
    """A rank used more memory than it asked for."""


class JobEvictedError(JobFailedError):
    """The node pushed a rank out: pressure or a drain."""


class JobTimeoutError(JobFailedError):
    """One of the job's clocks ran out; the message says which."""


class NoCapacityError(JobFailedError):
    """The job can't fit where it was sent."""


class JobImageError(JobFailedError):
    """A container image could not be had."""


class JobExitedError(JobFailedError):
    """A rank ended with a code or by a signal that was not ours."""


class JobMisconfiguredError(JobFailedError):
    """Something about the job or its place makes it impossible to run."""


class JobDependencyError(JobFailedError):
    """A role that another waits for did not come up."""


class JobStoppedError(JobFailedError):
    """Somebody stopped the job through us."""


class JobDeletedError(JobFailedError):
    """Somebody removed the job's objects behind our back."""


class JobFailedUnknownError(JobFailedError):
    """The job ended and nothing says why; the evidence is in the diagnosis."""
