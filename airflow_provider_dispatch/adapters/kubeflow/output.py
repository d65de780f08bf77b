# SPDX-License-Identifier: Apache-2.0
"""`output`: the log of one rank, over executions, each line once and over reconnects.

The adapter calls it. An execution is found by the epoch on its pods, never by their order. What a pod printed goes with
the pod, so of an execution that is over only as much is left as was read in time; a notice stands for the rest. While
there is nothing to read, only what *changes* waits on wakes it. The API tells neither which stream a line came from nor
how many lines were cut off by the rotation of a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.errors import ObjectGoneError
from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_objects
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.log_place import LogLine, LogPlace, parse_line
from airflow_provider_dispatch.adapters.kubeflow.model.rank_pods import find_rank_pods, has_ended, has_started
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_submission
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import check_place
from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.core.identity import HIGHEST_R
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import MOST_NODES, ROLE_NAME
from airflow_provider_dispatch.core.output import Cursor, OutputLine, clean_text
from airflow_provider_dispatch.exceptions import JobNotFoundError, ProtocolError, SpecError, UnavailableError

LOOK_SECONDS = 2.0
"""Between two looks where nobody tells of changes, and after a log that broke."""
LONGEST_LINE = 64 * 1024
STDOUT = "stdout"
NOTICE = "notice"
_LARGEST_NUMBER = 2**63 - 1

Changes = Callable[[], Awaitable[object]]


async def _wait_a_moment() -> None:
    await asyncio.sleep(LOOK_SECONDS)


async def read_output(
    client: KubeClient,
    settings: KubeflowSettings,
    ref: JobRef,
    request: OutputRequest,
    *,
    changes: Changes = _wait_a_moment,
) -> AsyncGenerator[OutputLine]:
    """The lines asked for.

    :param changes: returns once something of the job may have changed, or after a moment.
    :raises JobNotFoundError: nothing is left of the job and no role is named.
    :raises ProtocolError: the cursor names no place in such an output.
    """
    check_place(ref, settings)
    reader = _Reader(client, settings, ref, request, changes)
    given = 0
    async with aclosing(reader.read()) as lines:
        async for line in lines:
            yield line
            given += 1
            if given == request.most_lines:
                return


@dataclass(frozen=True, slots=True)
class _Sight:
    """One look at a submission.

    :param pods: of the wanted rank, by R.
    :param is_over: nothing runs any more that could begin another execution.
    """

    pods: dict[int, Raw]
    is_over: bool


@dataclass(slots=True)
class _Reader:
    client: KubeClient
    settings: KubeflowSettings
    ref: JobRef
    request: OutputRequest
    changes: Changes
    role: str = ""
    execution: int | None = None
    place: LogPlace = field(default_factory=LogPlace)
    is_begun: bool = False
    has_warned: bool = False
    is_broken: bool = False
    is_drained: bool = False

    def __post_init__(self) -> None:
        cursor, wanted = self.request.cursor, self.request
        role = wanted.role or (cursor.role if cursor is not None else "")
        if role and not re.fullmatch(ROLE_NAME, role):
            raise SpecError("role", "is no name of a role", role)
        if not 0 <= wanted.rank < MOST_NODES:
            raise SpecError("rank", f"must lie between 0 and {MOST_NODES - 1}", wanted.rank)
        self.role, self.execution = role, self.only
        if cursor is None:
            return
        if max(cursor.execution, cursor.generation, cursor.offset) > _LARGEST_NUMBER:
            raise ProtocolError("no such place in the output; begin again without a cursor")
        if (cursor.role, cursor.rank) != (role, wanted.rank):
            raise ProtocolError(f"the cursor belongs to rank {cursor.rank} of {cursor.role}")
        if self.only in (None, cursor.execution):
            self.execution, self.is_begun = cursor.execution, True
            self.place = LogPlace(cursor.offset, cursor.sequence, cursor.generation)

    @property
    def only(self) -> int | None:
        """R of the one execution that is wanted; None means later ones too."""
        epoch = self.request.epoch
        return epoch - self.ref.submission * (HIGHEST_R + 1) if epoch is not None else None

    async def read(self) -> AsyncGenerator[OutputLine]:
        """Everything that is there, or that comes until no more can come."""
        while True:
            sight = await self._try_look()
            if sight is not None:
                async with aclosing(self._read_sight(sight)) as lines:
                    async for line in lines:
                        yield line
                if not self.request.follow or self._is_complete(sight):
                    return
            await self._wait()

    async def _wait(self) -> None:
        """Until something may have changed; a log that broke is tried again soon although nothing has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS if self.is_broken else None):
                await self.changes()

    async def _try_look(self) -> _Sight | None:
        """None while somebody who follows, and has seen the job once, can't reach the cluster."""
        try:
            sight = await self._look()
        except UnavailableError:
            if not self.request.follow or not self.role:
                raise
            self.is_broken = True
            return None
        self.is_broken = False
        return sight

    async def _look(self) -> _Sight:
        objects = await fetch_objects(self.client, self.settings.namespace, self.ref)
        if not self.role:
            if objects.trainjob is None:
                raise JobNotFoundError(f"no such job: {self.ref.id}; name the role to read what it has left")
            self.role = read_submission(objects.trainjob).spec.leader.name
        seen = derive_observation(objects, datetime.now(UTC), ref=self.ref)
        return _Sight(find_rank_pods(objects.pods, self.role, self.request.rank), seen.is_over or seen.is_unheard_of)

    def _is_complete(self, sight: _Sight) -> bool:
        """Whether nothing can be added to what is wanted."""
        if any(execution > (self.execution or 0) for execution in sight.pods) and self.only is None:
            return False
        if sight.is_over:
            pod = sight.pods.get(self.execution or 0)
            return self.place.is_closed or pod is None or not has_started(pod)
        is_past = self.only is not None and any(execution > self.only for execution in sight.pods)
        return self.only is not None and (self.place.is_closed or is_past)

    async def _read_sight(self, sight: _Sight) -> AsyncGenerator[OutputLine]:
        """What the pods of one look have to say, one execution after the other."""
        if self.execution is None and sight.pods:
            self.execution = max(sight.pods)
        while self.execution is not None:
            pod = sight.pods.get(self.execution)
            if pod is not None and has_started(pod) and not self.place.is_closed:
                async with aclosing(self._read_pod(pod, is_over=sight.is_over)) as lines:
                    async for line in lines:
                        yield line
            elif pod is None and self.is_drained:
                self.place.close()
            elif pod is None and not self.place.is_closed and self._was_there(sight):
                yield self._close_with_notice("the rest of the output of this execution is gone with its pod")
            later = [execution for execution in sight.pods if execution > self.execution]
            if self.only is not None or not later or not (self.place.is_closed or self._is_left_behind(pod)):
                return
            self.execution, self.place, self.is_begun, self.is_drained = min(later), LogPlace(), False, False

    def _was_there(self, sight: _Sight) -> bool:
        """The pod that is missing has existed: it was read, or a later one exists, or the job is over."""
        return self.is_begun or any(execution > (self.execution or 0) for execution in sight.pods) or sight.is_over

    def _is_left_behind(self, pod: Raw | None) -> bool:
        """A later execution exists, so this one never starts, or has ended."""
        return pod is None or not has_started(pod)

    async def _read_pod(self, pod: Raw, *, is_over: bool) -> AsyncGenerator[OutputLine]:
        """The log from the present place on; with *follow* until the container has ended."""
        self.place.begin_again()
        is_whole, self.is_broken = has_ended(pod), False
        try:
            async with aclosing(self._read_lines(pod)) as lines:
                async for raw, has_end in lines:
                    # A running container may still go on with a line that has no end.
                    if has_end or is_whole or self.request.follow:
                        for line in self._give_out(raw):
                            yield line
        except ObjectGoneError:
            return
        except UnavailableError as error:
            if not self.request.follow:
                raise
            if is_whole or is_over:
                yield self._close_with_notice(f"the rest can't be read: {clean_text(str(error))}")
            self.is_broken = True
            return
        # A node ends a stream that is followed when the container has ended, often before the pod says so.
        self.is_drained = self.request.follow
        if is_whole:
            self.place.close()
        else:
            self.is_broken = True

    async def _read_lines(self, pod: Raw) -> AsyncGenerator[tuple[bytes, bool]]:
        """Lines without their ends; the last may have none."""
        rest = b""
        chunks = self.client.read_log(
            fields.name(pod),
            self.settings.namespace,
            container=words.NODE_CONTAINER,
            since_time=self.place.since,
            follow=self.request.follow,
        )
        async with aclosing(chunks) as pieces:
            async for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line, True
        if rest:
            yield rest, False

    def _give_out(self, raw: bytes) -> list[OutputLine]:
        line = parse_line(raw)
        if line is None:
            return self._warn(raw)
        given: list[OutputLine] = []
        if self.place.is_cut_off(line):
            given.append(
                self._build_notice("lines may be missing here: the node has put an older part of the log aside")
            )
        if self.place.take(line):
            self.is_begun, self.is_drained = True, False
            given.append(self._build_line(line))
        return given

    def _warn(self, raw: bytes) -> list[OutputLine]:
        """What a node says instead of a log, once; not of a log that has been read to its end."""
        if self.has_warned or self.is_drained or not raw.strip():
            return []
        self.has_warned = True
        return [self._build_notice(clean_text(raw))]

    def _close_with_notice(self, text: str) -> OutputLine:
        at = LogLine(self.place.newest, b"").at if self.place.newest else datetime.now(UTC)
        self.place.close()
        return self._build_notice(text, at)

    def _build_notice(self, text: str, at: datetime | None = None) -> OutputLine:
        now = (
            LogLine(self.place.newest, b"").at if self.place.newest and not self.place.is_closed else datetime.now(UTC)
        )
        return self._build(at or now, NOTICE, text, self.place.sequence)

    def _build_line(self, line: LogLine) -> OutputLine:
        text = clean_text(line.text[:LONGEST_LINE])
        missing = len(line.text) - LONGEST_LINE
        shown = f"{text}… ({missing} more bytes)" if missing > 0 else text
        return self._build(line.at, STDOUT, shown, self.place.sequence - 1)

    def _build(self, at: datetime, stream: str, text: str, sequence: int) -> OutputLine:
        execution, place = self.execution or 0, self.place
        cursor = Cursor(
            execution, self.role, self.request.rank, place.count or place.to_skip, place.newest, place.sequence
        )
        return OutputLine(
            at, self.role, self.request.rank, execution, sequence, stream, text, notice=stream == NOTICE, cursor=cursor
        )
