# SPDX-License-Identifier: Apache-2.0
"""Proves that jobs can be run here, and says what is weaker on this system. Leaves nothing behind."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from airflow_provider_dispatch.adapters.local.agent.node import fetch_node
from airflow_provider_dispatch.adapters.local.doorbell import is_agent_listening
from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.queues import QueuesFile
from airflow_provider_dispatch.adapters.local.scheduling.admission import decide_admission
from airflow_provider_dispatch.adapters.local.scheduling.model import NEVER, RANKS, AdmissionState, Shape, WaitingJob
from airflow_provider_dispatch.adapters.local.settings import LocalSettings
from airflow_provider_dispatch.adapters.local.store.database import Database
from airflow_provider_dispatch.adapters.local.store.errors import translating
from airflow_provider_dispatch.adapters.local.store.place import NETWORK_TYPES, fetch_file_system
from airflow_provider_dispatch.adapters.local.store.reading import fetch_meta
from airflow_provider_dispatch.core.capabilities import REQUIRED, Answer, Capability, Finding, Preflight, Source
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.exceptions import DispatchError

_PROBE_SECONDS = 5.0
_CURE = "mend it, or name another store in the connection"


def run_preflight(settings: LocalSettings) -> Preflight:
    """All checks, in order. Blocks."""
    layout = settings.layout
    checks = {
        "file system": _check(layout, lambda: _check_file_system(layout.folder)),
        "store": _check(layout, lambda: _check_store(layout)),
        "queues": _check(layout, lambda: QueuesFile(layout.queues).describe()),
        "agent": _check(
            layout, lambda: "one listens" if is_agent_listening(layout) else "none lives; one is started on demand"
        ),
    }
    return Preflight(checks, _derive_capabilities(checks["store"], checks["file system"]))


def check_fit(settings: LocalSettings, spec: JobSpec) -> Finding:
    """Whether what a job asks for could ever fit its queue and this machine, whatever else runs. Blocks.

    :raises SpecError: an unknown queue or priority.
    """
    queues = QueuesFile(settings.layout.queues)
    queue, priority = queues.resolve(spec)
    config = queues.build_config(fetch_node())
    shapes = tuple(Shape(role.nodes, {RANKS: 1, **role.requests}) for role in spec.roles)
    job = WaitingJob("job", queue, shapes, priority)
    state = AdmissionState((config.node,), config.queues, (job,), has_open_queues=config.has_open_queues)
    reason = decide_admission(state, 0.0).reasons.get(job.key)
    if reason is not None and reason.code in NEVER:
        return Finding(Answer.NO, Source.PROBED, reason.message, "ask for less, or change queues.toml")
    return Finding(Answer.YES, Source.PROBED, f"it could run in queue {queue}")


def _check(layout: StoreLayout, look: Callable[[], str]) -> Finding:
    try:
        with translating("look at", layout.folder):
            return Finding(Answer.YES, Source.PROBED, look())
    except DispatchError as error:
        return Finding(Answer.NO, Source.PROBED, str(error), _CURE)


def _derive_capabilities(*needed: Finding) -> dict[Capability, Finding]:
    broken = next((finding for finding in needed if finding.value is not Answer.YES), None)
    basis = broken or Finding(Answer.YES, Source.DECLARED, "the agent of this store does it itself")
    is_linux = sys.platform == "linux"
    return {
        **dict.fromkeys(REQUIRED, basis),
        Capability.POD_FENCE: _declare(
            is_linux,
            "a shim adopts and ends all that descends from a rank",
            "only process groups can be ended on this system; a process that leaves its group is not found",
        ),
        Capability.LOGS: Finding(Answer.YES, Source.DECLARED, "a file for each rank and execution"),
        Capability.QUEUE_POSITION: Finding(Answer.YES, Source.DECLARED, "counted when asked for"),
        Capability.PROGRESS: Finding(Answer.NO, Source.DECLARED, "nothing here reads progress"),
        Capability.MEMORY_LIMIT: _declare(
            is_linux,
            "sampled twice a second, which is weaker than a control group",
            "other processes' memory can't be seen on this system",
        ),
    }


def _declare(is_so: bool, when_so: str, when_not: str) -> Finding:  # noqa: FBT001 - the question itself
    return Finding(Answer.YES if is_so else Answer.NO, Source.DECLARED, when_so if is_so else when_not)


def _check_file_system(folder: Path) -> str:
    kind = fetch_file_system(_find_existing(folder))
    if kind in NETWORK_TYPES:
        raise DispatchError(f"{folder} lies on a network file system ({kind})")
    return f"{kind or 'of a type that this system does not tell'}, at {folder}"


def _check_store(layout: StoreLayout) -> str:
    """Write to the store that is there, without changing it; or make one beside and remove it."""
    if layout.database.exists():
        return _probe(layout)
    parent = _find_existing(layout.folder)
    with translating("write to", parent), tempfile.TemporaryDirectory(prefix=".dispatch-probe-", dir=parent) as name:
        _probe(StoreLayout(Path(name) / "probe"))
    return f"can be made in {layout.folder}"


def _probe(layout: StoreLayout) -> str:
    with contextlib.closing(Database(layout)) as database, database.write(_PROBE_SECONDS) as connection:
        return f"store {fetch_meta(connection)['store']} in {layout.folder} can be written"


def _find_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
