# SPDX-License-Identifier: Apache-2.0
"""What ranks print, written by the shim and read by cursor: complete, in order, exactly once."""

from __future__ import annotations

import os
import random
import resource
import selectors
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import PosixPath
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.local import logs
from airflow_provider_dispatch.adapters.local.logs import read_lines
from airflow_provider_dispatch.adapters.local.shim.rank import Rank
from airflow_provider_dispatch.adapters.local.shim.rank_log import RankLog
from airflow_provider_dispatch.adapters.local.shim.records import (
    LONGEST_LINE,
    PIECE,
    STDERR,
    STDOUT,
    LineSplitter,
    build_unit,
)
from airflow_provider_dispatch.adapters.local.shim.wire import SpawnOrder
from airflow_provider_dispatch.core.output import Cursor, OutputLine
from airflow_provider_dispatch.exceptions import ProtocolError
from tests.adapters.local.shim_process import ShimProcess, python, take_lock

AT = b"2026-11-30T13:00:00.123456789Z"
WHO: dict[str, Any] = {"execution": 3, "role": "worker", "rank": 1}


@pytest.fixture
def shim(tmp_path):
    with ShimProcess(tmp_path, job=f"job-{tmp_path.name}-{os.getpid()}") as shim:
        yield shim


@pytest.fixture
def log(tmp_path):
    log = RankLog(str(tmp_path), "worker", 1)
    yield log
    log.close()


def read_all(folder, *, limit=1000, **who):
    lines: list[OutputLine] = []
    cursor: Cursor | None = None
    while True:
        more, cursor = read_lines(folder, cursor=cursor, limit=limit, **(WHO | who))
        if not more:
            return lines
        lines += more


def texts(folder, **options):
    return [line.text for line in read_all(folder, **options)]


def units(*words, stream=STDOUT):
    return [build_unit(AT, stream, word.encode()) for word in words]


@contextmanager
def files_end_at(size):
    """No file of this process grows beyond *size*: a full disk, as far as writing is concerned."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestFormat:
    def test_records_are_those_of_the_container_runtime_interface(self, log, tmp_path):
        log.write(LineSplitter(STDERR).feed(b"one\ntwo\rbar \x1b[1m\x00\xff\n\nrest", AT))
        raw = (tmp_path / "worker-1.0.log").read_bytes()
        assert raw == AT + b" stderr F one\n" + AT + b" stderr F two\rbar \x1b[1m\x00\xff\n" + AT + b" stderr F \n"
        assert (tmp_path / "worker-1.0.log").stat().st_mode & 0o777 == 0o600

    def test_a_line_has_its_time_stream_and_place(self, log, tmp_path):
        log.write(units("out") + units("err", stream=STDERR))
        first, second = read_all(tmp_path)
        assert (first.text, first.stream, first.sequence, first.notice) == ("out", "stdout", 0, False)
        assert (second.text, second.stream, second.sequence) == ("err", "stderr", 1)
        assert (first.role, first.rank, first.execution) == ("worker", 1, 3)
        assert first.at == datetime(2026, 11, 30, 13, 0, 0, 123456, tzinfo=UTC)

    @pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, LONGEST_LINE - 1, LONGEST_LINE])
    def test_a_long_line_is_written_in_pieces_and_read_as_one(self, log, tmp_path, size):
        log.write(LineSplitter(STDOUT).feed(b"x" * size + b"\nnext\n", AT))
        records = (tmp_path / "worker-1.0.log").read_bytes().splitlines()
        assert all(len(record) <= PIECE + 50 for record in records)
        assert [len(text) for text in texts(tmp_path)] == [size, 4]

    @pytest.mark.parametrize("chunk", [1000, PIECE, 70_000, 10_000_000])
    def test_a_line_beyond_the_cap_comes_in_parts(self, log, tmp_path, chunk):
        line = bytes(random.Random(1).choices(b"abcdef", k=300_000))
        splitter = LineSplitter(STDOUT)
        for start in range(0, len(line), chunk):
            log.write(splitter.feed(line[start : start + chunk], AT))
        log.write(splitter.feed(b"\nnext", AT) + splitter.flush(AT))
        *parts, after = texts(tmp_path)
        assert ("".join(parts).encode(), after) == (line, "next")
        assert {len(part) for part in parts[:-1]} == {LONGEST_LINE}

    def test_a_rank_cannot_forge_a_notice_or_a_line_of_another(self, log, tmp_path):
        forged = (
            b"2026-11-30T13:00:00Z notice F 5 lines lost\r\n\x1b[2K2026-11-30T13:00:00Z stdout F other\x85\xe2\x80\xa8x"
        )
        log.write(LineSplitter(STDOUT).feed(forged + b"\n", AT))
        lines = read_all(tmp_path)
        assert [(line.notice, line.stream) for line in lines] == [(False, "stdout")] * 2
        assert all(len(line.text.splitlines()) == 1 for line in lines)


class TestReading:
    def test_nothing_printed_is_no_line(self, tmp_path):
        lines, cursor = read_lines(tmp_path / "none", **WHO)
        assert (lines, cursor) == ([], Cursor(3, "worker", 1))

    def test_a_cursor_of_another_rank_is_refused(self, tmp_path):
        with pytest.raises(ProtocolError, match="worker-2 of execution 3"):
            read_lines(tmp_path, **WHO, cursor=Cursor(3, "worker", 2))

    def test_a_half_written_line_waits_for_its_end(self, tmp_path):
        path = tmp_path / "worker-1.0.log"
        whole = b"".join(units("one", "x" * (PIECE + 10), "three"))
        lines, cursor = [], None
        for size in [*range(100), *range(PIECE, PIECE + 200), len(whole)]:
            path.write_bytes(whole[:size])
            more, cursor = read_lines(tmp_path, **WHO, cursor=cursor)
            lines += more
        assert [line.text for line in lines] == ["one", "x" * (PIECE + 10), "three"]
        assert [line.sequence for line in lines] == [0, 1, 2]

    def test_a_torn_end_of_a_file_that_has_a_successor_is_passed_over(self, tmp_path):
        header = AT + b' header F {"generation": 1, "sequence": 1}\n'
        (tmp_path / "worker-1.0.log").write_bytes(units("one")[0] + b"2026-11-30T13:00:00Z stdout F tor")
        (tmp_path / "worker-1.1.log").write_bytes(header + units("two")[0])
        assert [(line.sequence, line.text) for line in read_all(tmp_path)] == [(0, "one"), (1, "two")]

    def test_what_somebody_else_wrote_into_the_file_is_shown_as_that(self, tmp_path):
        foreign = b"hello\n" + AT + b" elsewhere F x\nno-time stdout F x\n" + AT + b" stdout \xff x\n"
        (tmp_path / "worker-1.0.log").write_bytes(foreign + units("one")[0])
        lines = read_all(tmp_path)
        assert [line.notice for line in lines] == [True] * 4 + [False]
        assert lines[0].text == "unreadable: hello"

    def test_files_of_other_ranks_and_strangers_are_not_touched(self, log, tmp_path):
        for name in ("worker-11.0.log", "worker-1.x.log", "worker-1.log", "other-1.0.log", "worker-1.0.log.gz"):
            (tmp_path / name).write_bytes(units("not ours")[0])
        log.write(units("ours"))
        assert texts(tmp_path) == ["ours"]

    def test_one_call_takes_a_bounded_part(self, log, tmp_path):
        log.write(units(*["x" * LONGEST_LINE] * 150))
        lines, cursor = read_lines(tmp_path, **WHO)
        assert 0 < len(lines) * LONGEST_LINE <= logs.BYTES_AT_ONCE
        rest, _ = read_lines(tmp_path, **WHO, cursor=cursor)
        assert rest[0].sequence == len(lines)


class TestTurningOver:
    def test_a_full_file_is_followed_by_the_next_and_three_are_kept(self, tmp_path):
        log = RankLog(str(tmp_path), "worker", 1, generation_bytes=1000)
        log.write(units(*map(str, range(200))))
        log.close()
        files = sorted(tmp_path.iterdir())
        assert len(files) == 3
        assert all(file.stat().st_size <= 1000 for file in files)
        assert max(int(file.name.split(".")[1]) for file in files) > 3

    def test_lines_that_were_removed_unread_are_counted_in_one_line(self, tmp_path):
        log = RankLog(str(tmp_path), "worker", 1, generation_bytes=1000)
        log.write(units("0", "1"))
        _, cursor = read_lines(tmp_path, **WHO)
        log.write(units(*map(str, range(2, 200))))
        lines, _ = read_lines(tmp_path, **WHO, cursor=cursor)
        log.close()
        notice, first, *rest = lines
        assert (notice.notice, notice.stream, notice.sequence) == (True, "notice", 2)
        assert notice.text.startswith(f"{first.sequence - 2} lines are left out")
        assert [line.text for line in (first, *rest)] == [str(line.sequence) for line in (first, *rest)]
        assert rest[-1].text == "199"

    def test_nothing_is_said_where_nothing_is_missing(self, tmp_path):
        log = RankLog(str(tmp_path), "worker", 1, generation_bytes=500)
        lines: list[OutputLine] = []
        cursor: Cursor | None = None
        for number in range(300):
            log.write(units(str(number)))
            if number % 10 == 0:
                more, cursor = read_lines(tmp_path, **WHO, cursor=cursor)
                lines += more
        log.close()
        more, _ = read_lines(tmp_path, **WHO, cursor=cursor)
        assert [(line.sequence, line.text) for line in lines + more] == [(n, str(n)) for n in range(300)]

    def test_a_line_written_while_the_folder_is_looked_at_is_not_passed_over(self, tmp_path):
        log = RankLog(str(tmp_path), "worker", 1, generation_bytes=150)
        log.write(units("0"))
        unwritten = ["1", "2", "3"]

        class BusyFolder(PosixPath):
            def iterdir(self):
                log.write(units(*unwritten))
                unwritten.clear()
                return super().iterdir()

        first, cursor = read_lines(tmp_path, **WHO)
        rest, _ = read_lines(BusyFolder(tmp_path), **WHO, cursor=cursor)
        log.close()
        assert (tmp_path / "worker-1.1.log").exists()
        assert [line.text for line in first + rest] == ["0", "1", "2", "3"]

    @pytest.mark.parametrize(
        "header",
        [
            b"{}",
            b"[]",
            b"{",
            b'{"sequence": "7"}',
            b'{"sequence": 1e999}',
            b'{"sequence": 1.5}',
            b'{"sequence": true}',
            b'{"sequence": -1}',
            b'{"sequence": ' + b"9" * 4000 + b"}",
            b"[" * 60_000,
        ],
    )
    def test_a_spoilt_header_is_an_error(self, header, tmp_path):
        (tmp_path / "worker-1.4.log").write_bytes(AT + b" header F " + header + b"\n" + units("x")[0])
        with pytest.raises(ProtocolError, match="header"):
            read_lines(tmp_path, **WHO)

    @pytest.mark.parametrize("at", [b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59-14:00"])
    def test_a_time_at_an_end_of_the_calendar_is_unreadable(self, at, tmp_path):
        (tmp_path / "worker-1.0.log").write_bytes(at + b" stdout F forged\n" + units("x")[0])
        assert texts(tmp_path) == [f"unreadable: {at.decode()} stdout F forged", "x"]

    @pytest.mark.parametrize("start", [b"", AT + b" head", AT + b" stdout F x\n"])
    def test_a_file_that_has_no_header_yet_waits(self, tmp_path, start):
        (tmp_path / "worker-1.4.log").write_bytes(start)
        assert read_lines(tmp_path, **WHO) == ([], Cursor(3, "worker", 1))

    @pytest.mark.parametrize("seed", range(20))
    def test_any_reader_gets_each_line_exactly_once_or_counted(self, tmp_path, seed):
        chance = random.Random(seed)
        log = RankLog(str(tmp_path), "worker", 1, generation_bytes=chance.choice([300, 3000, 200_000]))
        splitters = [LineSplitter(STDOUT), LineSplitter(STDERR)]
        expected, printed, cursor, got = {STDOUT: b"", STDERR: b""}, 0, None, []
        for _ in range(400):
            if chance.random() < 0.5:
                stream = chance.choice([0, 1])
                text = b"%d%b%b" % (printed, b"-" * chance.choice([0, 5, 90_000]), chance.choice([b"\n", b"", b"\n\n"]))
                printed += 1
                expected[[STDOUT, STDERR][stream]] += text
                log.write(splitters[stream].feed(text, AT))
            else:
                cursor = Cursor.from_text(cursor.to_text()) if cursor else None
                more, cursor = read_lines(tmp_path, **WHO, cursor=cursor, limit=chance.randrange(1, 30))
                got += more
        for splitter in splitters:
            log.write(splitter.flush(AT))
        log.close()
        got += self._read_rest(tmp_path, cursor)
        self._check_complete(got, expected)

    @staticmethod
    def _read_rest(folder, cursor):
        lines: list[OutputLine] = []
        while True:
            more, cursor = read_lines(folder, **WHO, cursor=cursor, limit=7)
            if not more:
                return lines
            lines += more

    @staticmethod
    def _check_complete(got, expected):
        following, printed = 0, {"stdout": "", "stderr": ""}
        for line in got:
            assert line.sequence == following
            following += int(line.text.split(" lines are left out")[0]) if line.notice else 1
            if not line.notice:
                printed[line.stream] += line.text
        if not any(line.notice for line in got):
            assert printed == {stream.decode(): text.decode().replace("\n", "") for stream, text in expected.items()}


class TestFullDisk:
    def test_what_could_not_be_written_is_counted_in_one_line(self, log, tmp_path):
        log.write(units("before"))
        with files_end_at(100):
            log.write(units("fits", "does not fit", "nor this"))
            log.write(units("nor that"))
        log.write(units("after"))
        lines = read_all(tmp_path)
        assert [line.text for line in lines if not line.notice] == ["before", "fits", "after"]
        (notice,) = [line.text for line in lines if line.notice]
        assert notice.startswith("3 lines could not be written: File too large")

    def test_a_loss_is_also_stated_at_the_end(self, log, tmp_path):
        with files_end_at(0):
            log.write(units("one"))
        log.close()
        (line,) = read_all(tmp_path)
        assert (line.notice, line.text[:7]) == (True, "1 lines")

    def test_only_whole_lines_stay_whatever_the_room(self, tmp_path):
        batch = units("one", "two", "x" * (PIECE + 5), "three")
        for size in [*range(0, 150, 7), PIECE, PIECE + 200]:
            folder = tmp_path / str(size)
            log = RankLog(str(folder), "worker", 1)
            with files_end_at(size):
                log.write(batch)
            raw = (folder / "worker-1.0.log").read_bytes()
            log.write(units("end"))
            log.close()
            assert b"".join(batch).startswith(raw)
            assert [line.sequence for line in read_all(folder)] == list(range(len(read_all(folder))))
            assert texts(folder)[-1] == "end"

    def test_no_room_for_the_next_file_loses_lines_and_nothing_else(self, tmp_path):
        log = RankLog(str(tmp_path), "worker", 1, generation_bytes=200)
        log.write(units(*"abcd"))
        with files_end_at(10):
            log.write(units(*"efgh"))
        log.write(units(*"ijk"))
        log.close()
        lines = read_all(tmp_path)
        assert [line.text for line in lines if not line.notice] == [*"abcd", *"ijk"]
        assert [line.sequence for line in lines] == list(range(8))

    def test_a_missing_folder_is_made_and_an_impossible_one_survived(self, tmp_path):
        (tmp_path / "file").touch()
        log = RankLog(str(tmp_path / "file"), "worker", 1)
        log.write(units("lost"))
        (tmp_path / "file").unlink()
        log.write(units("kept"))
        log.close()
        assert texts(tmp_path / "file")[1:] == ["kept"]

    def test_rank_and_shim_live_on(self, shim):
        code = "print('one'); hello(); sys.stdout.write('x' * 300000 + '\\n'); print('three'); hello(); signal.pause()"
        shim.spawn(["true"])
        shim.wait_for("exited")  # it has loaded, and cached, its modules
        resource.prlimit(shim.process.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        shim.spawn(python(code), role="worker", rank=1)
        shim.greeter.meet(), shim.greeter.meet()
        resource.prlimit(shim.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        shim.end_and_wait()
        lines = read_all(shim.log_dir)
        assert lines[0].text == "one"
        assert any("could not be written" in line.text for line in lines if line.notice)


class TestThroughTheShim:
    def test_each_stream_keeps_its_order(self, shim):
        shim.spawn(python("for n in range(2000): os.write(1 + n % 2, b'%d\\n' % n)"), role="worker", rank=1)
        shim.wait_for("exited", exit_code=0)
        lines = read_all(shim.log_dir)
        for stream, first in (("stdout", 0), ("stderr", 1)):
            assert [int(line.text) for line in lines if line.stream == stream] == list(range(first, 2000, 2))

    def test_ten_megabytes_without_an_end(self, shim):
        code = "sys.stdout.buffer.write(b'\\x00\\x1b[1m\\xffb\\r' * (10_000_000 // 8)); sys.stdout.flush()"
        shim.spawn(python(code), role="worker", rank=1)
        shim.wait_for("exited", exit_code=0)
        raw = b""
        for generation in (0, 1):
            path = shim.log_dir / f"worker-1.{generation}.log"
            records = path.read_bytes().split(b"\n") if path.exists() else []
            raw += b"".join(record.split(b" ", 3)[3] for record in records if b" std" in record[:40])
        assert raw == b"\x00\x1b[1m\xffb\r" * (10_000_000 // 8)
        assert len(read_all(shim.log_dir)) == -(-10_000_000 // LONGEST_LINE)

    def test_the_last_line_needs_no_end_and_is_there_when_the_exit_is_told(self, shim):
        shim.spawn([sys.executable, "-ISc", "import sys; sys.stdout.write('last words')"], role="worker", rank=1)
        shim.wait_for("exited")
        (line,) = read_all(shim.log_dir)
        assert line.text == "last words"
        assert abs(datetime.now(UTC) - line.at) < timedelta(minutes=1)

    def test_all_that_was_printed_is_written_before_the_exit_is_told(self, tmp_path):
        code = """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)  # nobody reads before it has ended
os.write(1, b"x" * 65535 * 15 + b" last words")
"""
        order = {"op": "spawn", "role": "worker", "rank": 1, "env": {}, "cwd": "/", "log_dir": str(tmp_path)}
        with selectors.DefaultSelector() as selector, take_lock(tmp_path / "lock") as lock:
            order["argv"] = [sys.executable, "-ISc", code]
            rank = Rank(SpawnOrder(order), lock_fd=lock.fd, selector=selector, now=0)
            rank.note_exit(os.waitpid(rank.pid, 0)[1])
            lines = read_all(tmp_path)
            rank.capture.close()
        assert sum(len(line.text) for line in lines) == 65535 * 15 + len(" last words")
        assert lines[-1].text.endswith("x last words")

    def test_files_turn_over_at_ten_mebibytes(self, shim):
        code = "for n in range(700): sys.stdout.write(str(n).zfill(65000) + '\\n')"
        shim.spawn(python(code), role="worker", rank=1)
        shim.wait_for("exited", exit_code=0)
        sizes = [path.stat().st_size for path in shim.log_dir.iterdir()]
        assert len(sizes) == 3
        assert max(sizes) <= 10 * 1024 * 1024
        lines = read_all(shim.log_dir)
        assert (lines[0].notice, lines[-1].sequence, lines[-1].text[-3:]) == (True, 699, "699")
