# SPDX-License-Identifier: Apache-2.0
"""Tries a job on the cluster: in dry runs through its webhooks, then with one that is made and watched behind its gate.

That one is removed whatever happens; what a killed preflight has left, the controller removes, or the next one. Each
probe has names of its own and says until when it may be in use, so that nobody takes another's away.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.creating import create_trainjob
from airflow_provider_dispatch.adapters.kubeflow.errors import quote_answer
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.probe import (
    NO_GATE,
    build_probe_runtime,
    build_probe_trainjob,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import ProbeSight, Seen, TrialSight, Unseen
from airflow_provider_dispatch.adapters.kubeflow.model.probe_marks import (
    PROBE_SELECTOR,
    build_probe_name,
    build_probe_until,
    is_abandoned,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.adapters.kubeflow.preflight.guards import look
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.transport import Sleep
from airflow_provider_dispatch.core.identity import build_job_id
from airflow_provider_dispatch.exceptions import DispatchError, RefusedError

PAUSE_SECONDS = 0.5
"""Between two looks at a probe."""
PATIENCE_SECONDS = 10.0
"""How long controllers have to take a probe up, and to let it go, however short it is watched."""


MADE = (TRAINJOBS, TRAINING_RUNTIMES)
"""In the order of removal: by its runtime the controller finds what is left of a probe, so that goes last."""


async def remove_abandoned(client: KubeClient, settings: KubeflowSettings, now: datetime) -> None:
    """Remove the probes of preflights that were killed. Where that isn't allowed, another check says so."""
    kept: set[str] = set()
    for resource in MADE:
        found = await look(client.list(resource, settings.namespace, labels=PROBE_SELECTOR))
        if isinstance(found, Unseen):
            return
        for raw in found.items:
            name = fields.name(raw)
            if name in kept or not is_abandoned(raw, now):
                continue
            if isinstance(await look(client.delete(resource, name, settings.namespace, uid=fields.uid(raw))), Unseen):
                kept.add(name)


class Prober:
    """One trial with one probe.

    :param awaits_gate: nothing else but its gate keeps the probe waiting, so Kueue will say that of it.
    """

    def __init__(
        self, client: KubeClient, settings: KubeflowSettings, *, now: datetime, sleep: Sleep, awaits_gate: bool = True
    ) -> None:
        self._client, self._namespace, self._sleep, self._awaits_gate = client, settings.namespace, sleep, awaits_gate
        self._seconds = settings.probe_seconds
        self._job = build_job_id(0, os.urandom(10))
        self._name = build_probe_name(self._job)
        queue = settings.queue or ""
        self._terms = Terms(settings.namespace, queue, is_fenced=bool(queue) or settings.has_controller)
        self._until = build_probe_until(now, self._seconds)
        self._made: Raw | None = None
        """The probe as it was created."""

    async def run(self) -> tuple[TrialSight, Seen[ProbeSight] | None]:
        """What dry runs answered, and what was seen of the probe; None when none was made.

        :raises UnavailableError: the API server doesn't answer.
        """
        try:
            trial = await self._try()
            if isinstance(trial.trainjob, Unseen) or not self._seconds:
                return trial, None
            probe = await look(self._watch())
        finally:
            # Also when somebody presses Ctrl-C: what was made has to go.
            left = await asyncio.shield(self._remove())
        return trial, probe if isinstance(probe, Unseen) else replace(probe, left=left)

    async def _try(self) -> TrialSight:
        runtime = build_probe_runtime(self._job, self._terms, self._until)
        made = await look(self._client.create(TRAINING_RUNTIMES, runtime, self._namespace))
        if isinstance(made, Unseen):
            return TrialSight(made, made, made)
        answer = await look(self._send(words.GATE, dry_run=True))
        if isinstance(answer, Unseen) or not self._terms.queue:
            return TrialSight(answer, runtime=made)
        return TrialSight(answer, await look(self._is_nonsense_refused()), made)

    async def _send(self, gate: str, *, dry_run: bool = False) -> Raw:
        trainjob = build_probe_trainjob(self._job, self._terms, self._until, gate=gate)
        return await create_trainjob(self._client, trainjob, self._namespace, sleep=self._sleep, dry_run=dry_run)

    async def _is_nonsense_refused(self) -> bool:
        """A gate that Kueue honours is one whose syntax it checks."""
        try:
            await self._send(NO_GATE, dry_run=True)
        except RefusedError:
            return True
        return False

    async def _watch(self) -> ProbeSight:
        self._made = await self._send(words.GATE)
        seen = ProbeSight(0.0, self._made)
        while not self._is_enough(seen):
            await self._sleep(PAUSE_SECONDS)
            seen = await self._look_again(replace(seen, seconds=seen.seconds + PAUSE_SECONDS))
        return seen

    def _is_enough(self, seen: ProbeSight) -> bool:
        if seen.pods or seen.was_let_in:
            return True
        return seen.seconds >= (self._seconds if self._is_taken_up(seen) else max(self._seconds, PATIENCE_SECONDS))

    def _is_taken_up(self, seen: ProbeSight) -> bool:
        """Every controller has done with it what it will do."""
        if words.JOBSET_SUSPENDED not in fields.conditions(seen.jobset):
            return False
        if not self._terms.queue:
            return True
        return words.QUOTA_RESERVED in fields.conditions(seen.workload) if self._awaits_gate else bool(seen.workload)

    async def _look_again(self, seen: ProbeSight) -> ProbeSight:
        trainjob, workload, jobset, pods = await asyncio.gather(
            self._client.get(TRAINJOBS, self._name, self._namespace),
            self._fetch_workload(),
            self._client.get(JOBSETS, self._name, self._namespace),
            self._fetch_pods(),
        )
        was_let_in = any(fields.is_true(workload, one) for one in (words.QUOTA_RESERVED, words.ADMITTED))
        return replace(
            seen,
            trainjob=trainjob or seen.trainjob,
            workload=workload or seen.workload,
            jobset=jobset or seen.jobset,
            pods=tuple(dict.fromkeys((*seen.pods, *pods))),
            was_let_in=was_let_in or (trainjob is not None and not fields.flag(trainjob, "spec", "suspend")),
        )

    async def _fetch_workload(self) -> Raw | None:
        if not self._terms.queue or self._made is None:
            return None
        selector = f"{words.JOB_UID_LABEL}={fields.uid(self._made)}"
        return next(iter((await self._client.list(WORKLOADS, self._namespace, labels=selector)).items), None)

    async def _fetch_pods(self) -> tuple[str, ...]:
        found = await self._client.list(PODS, self._namespace, labels=f"{words.JOBSET_NAME_LABEL}={self._name}")
        return tuple(map(fields.name, found.items))

    async def _remove(self) -> tuple[str, ...]:
        """Remove both objects and wait until what was made beneath has gone; what is left of it, for people."""
        for resource in MADE:
            if kept := await self._delete(resource):
                return (kept,)
        try:
            waited = 0.0
            while (left := await self._list_left()) and waited < PATIENCE_SECONDS:
                await self._sleep(PAUSE_SECONDS)
                waited += PAUSE_SECONDS
        except DispatchError as error:
            # What was seen of the probe matters more than what can't be seen of its end.
            return (f"{self._name} ({quote_answer(error)})",)
        return left

    async def _delete(self, resource: Resource) -> str:
        """Why it stays; the controller or the next preflight tries again."""
        try:
            await self._client.delete(resource, self._name, self._namespace)
        except DispatchError as error:
            return f"{resource.kind} {self._name} ({quote_answer(error)})"
        return ""

    async def _list_left(self) -> tuple[str, ...]:
        if self._made is None:
            return ()
        seen = await self._look_again(ProbeSight(0.0, {}))
        objects = (seen.trainjob, seen.workload, seen.jobset)
        return (*(f"{fields.text(raw, 'kind')} {fields.name(raw)}" for raw in objects if raw), *seen.pods)
