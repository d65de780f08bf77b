# SPDX-License-Identifier: Apache-2.0
"""output: lines of one rank over executions, reconnects and pods that go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.errors import ObjectGoneError
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.log_place import parse_line
from airflow_provider_dispatch.adapters.kubeflow.model.resources import PODS, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.output import read_output
from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.core.output import Cursor, OutputLine
from airflow_provider_dispatch.exceptions import ConflictError, JobNotFoundError, ProtocolError, UnavailableError
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient
from tests.adapters.kubeflow.objects import SETTINGS, build_pod, build_ref, build_trainjob, place_job

RUNNING = {"containerStatuses": [{"name": "node", "state": {"running": {"startedAt": "2026-03-01T12:00:00Z"}}}]}
ENDED = {"containerStatuses": [{"name": "node", "state": {"terminated": {"exitCode": 0}}}]}


def stamp(second: int, nanos: int = 0, text: str = "x") -> bytes:
    return f"2026-03-01T12:{second // 60:02}:{second % 60:02}.{nanos:09}Z {text}\n".encode()


class LogClient(MemoryClient):
    """Logs as a node gives them: from a whole second on; a stream breaks where a test wants it to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.breaks: list[tuple[int, Exception]] = []
        self.asked: list[datetime | None] = []

    async def read_log(  # type: ignore[override]  # the fake's own takes anything
        self, pod: str, namespace: str, *, since_time: datetime | None = None, **options: Any
    ) -> AsyncGenerator[bytes]:
        self.asked.append(since_time)
        if self.peek(PODS, pod) is None:
            raise ObjectGoneError(f"no pod {pod}")
        begin = int(since_time.timestamp()) * 10**9 if since_time is not None else 0
        lines = self.logs.get(pod, b"").splitlines(keepends=True)
        wanted = b"".join(line for line in lines if (read := parse_line(line.rstrip())) is None or read.stamp >= begin)
        cut, error = self.breaks.pop(0) if self.breaks else (len(wanted), None)
        for start in range(0, min(cut, len(wanted)), 7):
            yield wanted[start : min(start + 7, cut)]
        if error is not None:
            raise error


def put_pod(client: LogClient, r: int = 1, *, status: dict[str, Any] = RUNNING, log: bytes = b"", rank: int = 0) -> str:
    name = f"pod-r{r}-{rank}"
    notes = {words.EPOCH_ANNOTATION: str(1_000_000 + r)}
    pod = build_pod(rank, name=name, uid=f"uid-{r}-{rank}", notes=notes)
    pod["status"] = {"phase": "Running", **status}
    client.put(PODS, pod)
    client.logs[name] = log
    return name


def place(*, log: bytes = b"", status: dict[str, Any] = RUNNING) -> LogClient:
    client = LogClient()
    place_job(client, pods=0)
    put_pod(client, log=log, status=status)
    return client


def end_job(client: LogClient) -> None:
    done = [{"type": "Complete", "status": "True", "reason": "AllJobsCompleted"}]
    client.put(TRAINJOBS, {**build_trainjob(), "status": {"conditions": done}})


def read(client: KubeClient, *, scenes: Sequence[Callable[[], object]] = (), **request: Any) -> list[OutputLine]:
    """Read; each time that the reader waits, the next scene is played."""

    left = list(scenes)

    async def change() -> None:
        assert left, "it waits for something that the test doesn't bring"
        left.pop(0)()

    waits: Callable[[], Awaitable[object]] = change

    async def collect() -> list[OutputLine]:
        lines = read_output(client, SETTINGS, build_ref(), OutputRequest(**request), changes=waits)
        return [line async for line in lines]

    return asyncio.run(collect())


def texts(lines: list[OutputLine]) -> list[str]:
    return [line.text for line in lines]


def said(lines: list[OutputLine]) -> list[tuple[int, str]]:
    return [(line.execution, line.text) for line in lines if not line.notice]


def test_lines_come_in_order_with_their_own_stamps() -> None:
    client = place(log=stamp(1, 5, "a") + stamp(1, 6, "b \x1b[31mred\x1b[0m"))
    lines = read(client)
    assert texts(lines) == ["a", "b red"]
    assert [line.sequence for line in lines] == [0, 1]
    assert lines[0].at.isoformat() == "2026-03-01T12:00:01+00:00"
    assert {(line.role, line.rank, line.execution, line.stream) for line in lines} == {("node", 0, 1, "stdout")}


@pytest.mark.parametrize("status", [RUNNING, ENDED], ids=["running", "ended"])
def test_each_line_comes_once_over_many_readings(status: dict[str, Any]) -> None:
    log = b"".join(stamp(1 + number // 40, number % 3, f"line {number}") for number in range(200))
    client = place(log=log, status=status)
    lines: list[OutputLine] = []
    cursor: Cursor | None = None
    for most in (1, 7, 50, 100, 60):
        lines += read(client, cursor=cursor, most_lines=most)
        assert lines[-1].cursor is not None
        cursor = Cursor.from_text(lines[-1].cursor.to_text())
    assert texts(lines) == [f"line {number}" for number in range(200)]
    assert [line.sequence for line in lines] == list(range(200))
    assert client.asked[-1] is not None


def test_a_stream_that_breaks_goes_on_without_a_gap() -> None:
    log = b"".join(stamp(number, 0, f"line {number}") for number in range(20))
    client = place(log=log)
    client.breaks += [(cut, UnavailableError("broken")) for cut in (100, 217, 333)]

    def end() -> None:
        put_pod(client, status=ENDED, log=log)
        end_job(client)

    lines = read(client, follow=True, scenes=[lambda: None, lambda: None, end])
    assert texts(lines) == [f"line {number}" for number in range(20)]


def test_following_outlives_a_cluster_that_is_away() -> None:
    client = place(log=stamp(1, 0, "before"))

    def go_away() -> None:
        client.faults += [Fault("list", PODS, UnavailableError("away")) for _ in range(2)]

    def end() -> None:
        put_pod(client, status=ENDED, log=stamp(1, 0, "before") + stamp(2, 0, "after"))
        end_job(client)

    lines = read(client, follow=True, scenes=[go_away, lambda: None, end])
    assert texts(lines) == ["before", "after"]
    assert client.faults == []


def test_following_begins_with_a_cluster_that_answers() -> None:
    client = place(log=stamp(1))
    client.faults.append(Fault("list", PODS, UnavailableError("away")))
    with pytest.raises(UnavailableError):
        read(client, follow=True)


def test_without_following_a_broken_stream_is_an_error() -> None:
    client = place(log=stamp(1))
    client.breaks.append((3, UnavailableError("broken")))
    with pytest.raises(UnavailableError):
        read(client)


def test_following_begins_before_the_pod_and_reaches_into_the_next_execution() -> None:
    client = LogClient()
    place_job(client, pods=0)

    def drop_and_next() -> None:
        client.drop(PODS, "pod-r1-0")
        put_pod(client, 2, log=stamp(60, 0, "second"), status=ENDED)

    scenes: list[Callable[[], object]] = [
        lambda: put_pod(client, log=b"", status={"containerStatuses": []}),
        lambda: put_pod(client, log=stamp(1, 0, "first"), status=ENDED),
        drop_and_next,
        lambda: end_job(client),
    ]
    lines = read(client, follow=True, scenes=scenes)
    assert said(lines) == [(1, "first"), (2, "second")]
    assert not any(line.notice for line in lines)


def test_the_newest_execution_is_meant_by_its_epoch_and_not_by_its_place() -> None:
    client = place(log=stamp(1, 0, "one"), status=ENDED)
    put_pod(client, 10, log=stamp(3, 0, "ten"))
    put_pod(client, 9, log=stamp(2, 0, "nine"), status=ENDED)
    assert said(read(client)) == [(10, "ten")]
    assert said(read(client, epoch=1_000_009)) == [(9, "nine")]
    assert said(read(client, epoch=1_000_001, follow=True)) == [(1, "one")]


def test_a_pod_that_was_never_lifted_has_no_output() -> None:
    client = place(log=stamp(1, 0, "real"), status=ENDED)
    stray = build_pod(0, name="stray", uid="stray", notes={})
    stray["status"] = {"phase": "Running", **RUNNING}
    client.put(PODS, stray)
    client.logs["stray"] = stamp(5, 0, "stray")
    assert said(read(client)) == [(1, "real")]


def test_ranks_are_told_apart() -> None:
    client = place(log=stamp(1, 0, "zero"))
    put_pod(client, log=stamp(1, 0, "one"), rank=1)
    assert said(read(client, rank=1)) == [(1, "one")]
    assert read(client, rank=2) == []


def test_the_rest_of_a_vanished_pod_is_one_notice() -> None:
    client = place(log=stamp(1, 0, "a") + stamp(2, 0, "b"))
    first = read(client, most_lines=1)[0]
    client.drop(PODS, "pod-r1-0")
    lines = read(client, cursor=first.cursor)
    assert [(line.notice, line.sequence, line.stream) for line in lines] == [(True, 1, "notice")]
    assert "gone with its pod" in lines[0].text
    assert read(client, cursor=lines[0].cursor) == []
    put_pod(client, 2, log=stamp(60, 0, "next"))
    assert said(read(client, cursor=lines[0].cursor)) == [(2, "next")]


def test_a_log_whose_beginning_was_put_aside_is_told() -> None:
    client = place(log=stamp(1, 0, "a"))
    first = read(client)[0]
    put_pod(client, log=stamp(50, 0, "z"))
    lines = read(client, cursor=first.cursor)
    assert [line.notice for line in lines] == [True, False]
    assert texts(lines)[1] == "z"


def test_what_a_node_says_instead_of_a_log_is_a_notice() -> None:
    client = place(log=b"unable to retrieve container logs for containerd://x\n", status=ENDED)
    lines = read(client)
    assert [(line.notice, line.text) for line in lines] == [
        (True, "unable to retrieve container logs for containerd://x")
    ]


def test_a_stream_that_ended_before_the_pod_says_so_was_read_whole() -> None:
    client = place(log=stamp(1, 0, "a"))

    def remove_container() -> None:
        client.logs["pod-r1-0"] = b"unable to retrieve container logs for containerd://x\n"

    def remove_pod() -> None:
        client.drop(PODS, "pod-r1-0")
        end_job(client)

    lines = read(client, follow=True, scenes=[remove_container, remove_pod])
    assert [(line.notice, line.text) for line in lines] == [(False, "a")]


def test_a_line_without_an_end_waits_until_the_container_has_ended() -> None:
    client = place(log=stamp(1, 0, "a") + stamp(2, 0, "half").rstrip())
    assert texts(read(client)) == ["a"]
    put_pod(client, log=client.logs["pod-r1-0"], status=ENDED)
    assert texts(read(client)) == ["a", "half"]


def test_a_very_long_line_is_cut_and_says_so() -> None:
    client = place(log=stamp(1, 0, "y" * 70_000))
    text = texts(read(client))[0]
    assert len(text) < 66_000
    assert text.endswith("… (4464 more bytes)")


def test_following_a_lost_node_ends_with_a_notice_once_the_job_is_over() -> None:
    client = place(log=stamp(1, 0, "a"))
    client.breaks += [(0, UnavailableError("no route to the node")) for _ in range(2)]
    lines = read(client, follow=True, scenes=[lambda: end_job(client)])
    assert [line.notice for line in lines] == [True]
    assert "no route" in lines[0].text


def test_wrong_requests_are_refused() -> None:
    client = place()
    with pytest.raises(ProtocolError, match="rank 3 of node"):
        read(client, cursor=Cursor(1, "node", 3))
    with pytest.raises(ProtocolError, match="begin again"):
        read(client, cursor=Cursor(1, "node", 0, offset=2**70))
    with pytest.raises(ValueError, match="role"):
        read(client, role="../x")
    with pytest.raises(JobNotFoundError, match="name the role"):
        read(LogClient())


def test_a_job_of_another_namespace_is_a_conflict() -> None:
    from dataclasses import replace

    async def collect() -> list[OutputLine]:
        elsewhere = replace(build_ref(), place="elsewhere")
        return [line async for line in read_output(place(), SETTINGS, elsewhere, OutputRequest())]

    with pytest.raises(ConflictError):
        asyncio.run(collect())
