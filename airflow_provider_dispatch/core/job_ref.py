# SPDX-License-Identifier: Apache-2.0
"""The address of one submission of a job on one backend. `start` returns it; every other verb takes it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dispatch.core.identity import JobID, build_object_name


@dataclass(frozen=True, slots=True)
class JobRef:
    """A submission and where it lives.

    :param backend: adapter name, ``local`` or ``kubeflow``.
    :param place: what the adapter needs to know that it is its own: ``<store id>@<host>``, or a namespace.
    :param uid: the backend's own identity of the objects, so that others of the same name aren't taken for them.
    """

    job: JobID
    submission: int
    backend: str
    place: str
    uid: str = ""

    @property
    def id(self) -> str:
        """``<place>/dj-<job>-s<submission>``, for people."""
        return f"{self.place}/{build_object_name(self.job, self.submission)}"
