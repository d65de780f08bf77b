# SPDX-License-Identifier: Apache-2.0
"""What a submission is made with, besides its request: chosen by the connection and by what was found on the cluster.

`start` fills it in before anything is built; the manifests read it. It decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

STATE_ROOT = "/dispatch-state"
"""Where the state volume appears in every container, one folder a job beneath."""


@dataclass(frozen=True, slots=True)
class StateVolume:
    """Where ``DISPATCH_STATE_DIR`` lives. Exactly one is set.

    :param host_path: folder on every node; it must exist.
    :param claim: PersistentVolumeClaim in the job's namespace.
    """

    host_path: str = ""
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a submission is made.

    :param queue: LocalQueue; empty in plain mode.
    :param priority_class: WorkloadPriorityClass; empty for none.
    :param image: of a role that names none; empty leaves the runtime's own.
    :param state: None: the ranks get no ``DISPATCH_STATE_DIR``.
    :param is_fenced: the controller lifts each pod; otherwise the adapter itself says who an execution is.
    """

    namespace: str
    queue: str = ""
    priority_class: str = ""
    image: str = ""
    state: StateVolume | None = None
    is_fenced: bool = True
