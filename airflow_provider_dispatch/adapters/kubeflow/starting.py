# SPDX-License-Identifier: Apache-2.0
"""`start`: a submission's objects made once, behind the gate, whatever happens to the answers.

The adapter calls it. The order is: the private runtime, without an owner; the ledger; the TrainJob; the runtime's
owner. A runtime without an owner and without a TrainJob is therefore a start that was cut off, and the same call goes
on with it. Once a TrainJob was made its number is used up, also when somebody deletes it. Never looks at a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.creating import create_trainjob
from airflow_provider_dispatch.adapters.kubeflow.deadlines import within
from airflow_provider_dispatch.adapters.kubeflow.errors import AlreadyExistsError, ObjectGoneError
from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_ledger, fetch_objects
from airflow_provider_dispatch.adapters.kubeflow.ledgers import OVERTAKEN, write_ledger
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import (
    Ledger,
    read_ledger,
)
from airflow_provider_dispatch.adapters.kubeflow.model.manifests import build_owner_patch, build_runtime, build_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.machinery import (
    CURE_UNMANAGED,
    EXPLAIN_UNMANAGED,
    is_managed_by_kueue,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resuming import is_plain
from airflow_provider_dispatch.adapters.kubeflow.model.submission import (
    has_ended,
    is_ours,
    read_job_id,
    read_ref,
    read_submission_number,
)
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.adapters.kubeflow.preflight import run_preflight
from airflow_provider_dispatch.adapters.kubeflow.preflight.standing import check_standing
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import (
    QueueMemory,
    check_priority_class,
    fetch_runtime,
)
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.start_terms import build_terms, check_carried
from airflow_provider_dispatch.adapters.kubeflow.targets import fetch_trainjobs
from airflow_provider_dispatch.adapters.kubeflow.transport import Sleep
from airflow_provider_dispatch.core.capabilities import check_proved
from airflow_provider_dispatch.core.identity import build_object_name, parse_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import (
    CapabilityError,
    ConflictError,
    DispatchError,
    RefusedError,
    UnavailableError,
)

SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class _Starter:
    """One start: what stays the same from its first look to its last."""

    client: KubeClient
    settings: KubeflowSettings
    request: StartRequest
    memory: QueueMemory
    now: datetime
    sleep: Sleep

    @property
    def name(self) -> str:
        return build_object_name(self.request.job, self.request.submission)


async def start(
    client: KubeClient,
    settings: KubeflowSettings,
    request: StartRequest,
    *,
    memory: QueueMemory,
    deadline: datetime,
    now: datetime,
    sleep: Sleep = asyncio.sleep,
) -> JobRef:
    """Make the submission, its gate closed; returns once Kueue knows it. The same call again finds what is there.

    :param memory: of what was found good about the cluster lately.
    :raises SpecError: an unknown queue, priority or runtime, or a value that the cluster can't carry.
    :raises ConflictError: another spec, deployment or live submission; a number used before; a name that is taken.
    :raises CapabilityError: the cluster is not proved.
    :raises UnavailableError: no answer, or not in time; the same call may be made again.
    """
    starter = _Starter(client, settings, replace(request, job=parse_job_id(request.job)), memory, now, sleep)
    check_carried(settings, starter.request)
    async with within(deadline, now, "a start"):
        try:
            trainjob = await _ensure_trainjob(starter)
            if not has_ended(trainjob):
                await _settle(starter, trainjob)
        except (CapabilityError, RefusedError):
            await _check_proved(starter)
            raise
    return read_ref(trainjob)


async def _check_proved(starter: _Starter) -> None:
    """Tell a refusal by the lines of a preflight, where that is the cluster's fault. A probe would take too long here.

    :raises CapabilityError: the cluster is not proved.
    """
    settings = _choose_queue(starter)
    found = starter.memory.recall(settings, starter.now)
    if found is None:
        try:
            dry = settings.model_copy(update={"probe_seconds": 0.0})
            found = await run_preflight(starter.client, dry, now=starter.now, sleep=starter.sleep)
        except DispatchError:
            # What has happened says more than that nothing could be found out about it.
            return
        starter.memory.keep(settings, found)
    check_proved(found, starter.now)


def _choose_queue(starter: _Starter) -> KubeflowSettings:
    """The connection as if it named the queue of this job."""
    queue = build_terms(starter.settings, starter.request).queue
    return starter.settings.model_copy(update={"queue": queue or None})


async def _ensure_trainjob(starter: _Starter) -> Raw:
    client, settings, request = starter.client, starter.settings, starter.request
    trainjobs, config_map = await asyncio.gather(
        fetch_trainjobs(client, settings, request.job),
        fetch_ledger(client, settings.namespace, request.job),
    )
    ledger = _read_ledger(starter, config_map)
    if existing := next((one for one in trainjobs if read_submission_number(one) == request.submission), None):
        return _check_same(starter, existing)
    await _check_number(starter, ledger, trainjobs)
    terms = build_terms(settings, request)
    original, _ = await asyncio.gather(
        fetch_runtime(client, settings, request.spec.runtime), _check_cluster(starter, terms)
    )
    # Both are built before anything is written: what the cluster could not carry is found here.
    runtime, trainjob = build_runtime(request, original, terms), build_trainjob(request, original, terms)
    await _ensure_runtime(starter, runtime)
    await _ensure_ledger(starter, config_map, ledger)
    return await _create_trainjob(starter, trainjob, terms)


def _read_ledger(starter: _Starter, config_map: Raw | None) -> Ledger:
    """What is remembered of the job, if it is this deployment's and the object is ours."""
    if config_map is not None and read_job_id(config_map) != starter.request.job:
        raise ConflictError(
            f"ConfigMap {fields.name(config_map)} in namespace {starter.settings.namespace} was made by somebody else"
        )
    ledger, deployment = read_ledger(config_map), starter.request.owner.deployment
    if ledger.submission and ledger.deployment != deployment:
        raise ConflictError(
            f"job {starter.request.job} belongs to deployment {ledger.deployment!r}, not to {deployment!r}"
        )
    return ledger


def _check_same(starter: _Starter, found: Raw) -> Raw:
    """The object under our name, if this call could have made it."""
    request = starter.request
    if not is_ours(found) or read_job_id(found) != request.job:
        raise ConflictError(
            f"{fields.text(found, 'kind') or 'an object'} {fields.name(found)} in namespace "
            f"{starter.settings.namespace} was made by somebody else; remove it"
        )
    if fields.annotation(found, words.SPEC_DIGEST_ANNOTATION) != request.spec.digest:
        raise ConflictError(f"submission {request.submission} of job {request.job} exists with another spec")
    return found


async def _check_number(starter: _Starter, ledger: Ledger, trainjobs: Sequence[Raw]) -> None:
    """Refuse a number that was used, and any beside a submission that lives."""
    request = starter.request
    if request.submission < ledger.submission or (
        request.submission == ledger.submission and not await _is_cut_off(starter)
    ):
        used = f"submission {request.submission} of job {request.job} was used before"
        raise ConflictError(f"{used}; the next is {ledger.submission + 1}")
    for other in trainjobs:
        if not has_ended(other) and not await _has_ended_by_its_ranks(starter, other):
            number = read_submission_number(other)
            raise ConflictError(f"submission {number} of job {request.job} has not ended; stop it first")


async def _has_ended_by_its_ranks(starter: _Starter, trainjob: Raw) -> bool:
    """Ranks tell an end seconds before it stands on their TrainJob, and who was told so may go on at once."""
    objects = await fetch_objects(starter.client, starter.settings.namespace, read_ref(trainjob))
    return derive_observation(objects, starter.now).has_ended


async def _is_cut_off(starter: _Starter) -> bool:
    """A start of this very submission got no further than the ledger: the TrainJob takes the runtime over at once."""
    runtime = await starter.client.get(TRAINING_RUNTIMES, starter.name, starter.settings.namespace)
    return runtime is not None and is_ours(runtime) and not fields.items(runtime, "metadata", "ownerReferences")


async def _check_cluster(starter: _Starter, terms: Terms) -> None:
    client, settings, memory, now = starter.client, starter.settings, starter.memory, starter.now
    if (known := memory.recall(_choose_queue(starter), now)) is not None:
        check_proved(known, now)
    if not memory.knows(settings, now, "queue", terms.queue):
        await check_standing(client, settings, terms.queue, now=now)
        memory.note(settings, now, "queue", terms.queue)
    if terms.priority_class and not memory.knows(settings, now, "priority", terms.priority_class):
        await check_priority_class(client, terms.priority_class)
        memory.note(settings, now, "priority", terms.priority_class)


async def _ensure_runtime(starter: _Starter, runtime: Raw) -> None:
    client, namespace = starter.client, starter.settings.namespace
    try:
        await client.create(TRAINING_RUNTIMES, runtime, namespace)
    except AlreadyExistsError:
        found = await client.get(TRAINING_RUNTIMES, starter.name, namespace)
        if found is None:
            raise UnavailableError(f"TrainingRuntime {starter.name} is being removed; try again") from None
        _check_same(starter, {"kind": TRAINING_RUNTIMES.kind, **found})


async def _ensure_ledger(starter: _Starter, config_map: Raw | None, ledger: Ledger) -> None:
    """Use the number up: at most one of two callers with different submissions goes on.

    :param ledger: what the number was judged by. The controller notes the ends of pods in the same object at any time.
    """
    client, namespace, request = starter.client, starter.settings.namespace, starter.request
    number = ledger.submission
    while True:
        wanted = replace(ledger, submission=request.submission, deployment=request.owner.deployment)
        if ledger == wanted:
            return
        try:
            await write_ledger(client, namespace, request.job, config_map, wanted)
        except OVERTAKEN:
            config_map = await fetch_ledger(client, namespace, request.job)
        else:
            return
        ledger = _read_ledger(starter, config_map)
        if ledger.submission not in (number, request.submission):
            raise UnavailableError(f"somebody else changed the ledger of job {request.job} meanwhile; try again")


async def _create_trainjob(starter: _Starter, trainjob: Raw, terms: Terms) -> Raw:
    client, namespace = starter.client, starter.settings.namespace
    try:
        created = await create_trainjob(client, trainjob, namespace, sleep=starter.sleep)
    except AlreadyExistsError:
        found = await client.get(TRAINJOBS, starter.name, namespace)
        if found is None:
            raise UnavailableError(f"TrainJob {starter.name} is being removed; try again") from None
        return _check_same(starter, {"kind": TRAINJOBS.kind, **found})
    if problem := _explain_foreign_mode(created, terms):
        await client.delete(TRAINJOBS, starter.name, namespace, uid=fields.uid(created))
        raise CapabilityError(f"start_gate is no (probed): {problem}")
    return created


def _explain_foreign_mode(created: Raw, terms: Terms) -> str | None:
    """Why the cluster's webhooks have made another job of it than was asked for."""
    queue = fields.label(created, words.QUEUE_LABEL)
    if queue != terms.queue:
        return f"the cluster has put a job of queue {terms.queue!r} into queue {queue!r}; name that queue"
    return f"{EXPLAIN_UNMANAGED}; {CURE_UNMANAGED}" if queue and not is_managed_by_kueue(created) else None


async def _settle(starter: _Starter, trainjob: Raw) -> None:
    """Give the runtime its owner while Kueue makes the Workload."""
    owning = asyncio.create_task(_ensure_owner(starter, trainjob))
    try:
        await _await_workload(starter, trainjob)
    except BaseException:
        owning.cancel()
        # Its own failure is the lesser of two; looked at here so that nobody misses it.
        await asyncio.gather(owning, return_exceptions=True)
        raise
    await owning


async def _ensure_owner(starter: _Starter, trainjob: Raw) -> None:
    """From now on the runtime goes when its TrainJob does."""
    try:
        await starter.client.patch(
            TRAINING_RUNTIMES, starter.name, build_owner_patch(trainjob), starter.settings.namespace
        )
    except ObjectGoneError:
        # Somebody was quick to delete it. The verbs restore it where they need it.
        return


async def _await_workload(starter: _Starter, trainjob: Raw) -> None:
    """Wait until Kueue knows the job, and see that it knows of the gate. In plain mode there is nothing to wait for."""
    if is_plain(trainjob):
        return
    selector, pause = f"{words.JOB_UID_LABEL}={fields.uid(trainjob)}", SHORTEST_PAUSE_SECONDS
    while True:
        events = starter.client.watch(WORKLOADS, starter.settings.namespace, labels=selector)
        try:
            async for event in events:
                if event.type in ("ADDED", "MODIFIED"):
                    await _check_gate_is_known(starter, trainjob, event.object)
                    return
        finally:
            await events.aclose()
        # One that something between us and the server ends at once is begun again, and not as fast as that is.
        await starter.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _check_gate_is_known(starter: _Starter, trainjob: Raw, workload: Raw) -> None:
    wanted = fields.annotation(trainjob, words.ADMISSION_GATED_BY)
    if words.GATE in wanted and not fields.annotation(workload, words.ADMISSION_GATED_BY):
        latest = await starter.client.get(TRAINJOBS, starter.name, starter.settings.namespace)
        if words.GATE not in fields.annotation(latest, words.ADMISSION_GATED_BY):
            return  # opened meanwhile
        await starter.client.delete(TRAINJOBS, starter.name, starter.settings.namespace, uid=fields.uid(trainjob))
        raise CapabilityError("start_gate is no (probed): Kueue doesn't look at gates: AdmissionGatedBy is off")
