# SPDX-License-Identifier: Apache-2.0
"""The store: whole or not at all, its owner's only, bounded in time, and in the contract's words when it fails."""

from __future__ import annotations

import ast
import contextlib
import errno
import os
import sqlite3
import stat
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.lifecycle import intents as rules
from airflow_provider_dispatch.adapters.local.lifecycle.messages import LiftHold, Note, RemoveSubmission
from airflow_provider_dispatch.adapters.local.lifecycle.status import Ending, Execution, RankStatus, Status
from airflow_provider_dispatch.adapters.local.store import agency, intents, place, reading, schema
from airflow_provider_dispatch.adapters.local.store.database import Database
from airflow_provider_dispatch.adapters.local.store.errors import translate_os, translate_sqlite, translating
from airflow_provider_dispatch.core.holds import HoldRequest
from airflow_provider_dispatch.core.identity import Identity
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import AdapterError, RefusedError, UnavailableError
from tests.adapters.local.world import ANN, new_job

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ACCEPTED = intents.Acceptance("q", 0, "store@host")
SPEC = JobSpec(command=["true"], nodes=2)
PACKAGE = Path(intents.__file__).parents[3]


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return StoreLayout(tmp_path / "dispatch" / "s")


@pytest.fixture
def database(layout):
    made = Database(layout)
    yield made
    made.close()


def add(database: Database, *, job=None, submission: int = 1, spec: JobSpec = SPEC, now: datetime = NOW, **accepted):
    request = StartRequest(job or new_job(), submission, 1, spec)
    with database.write(5) as connection:
        return intents.add_submission(connection, request, replace(ACCEPTED, **accepted), now)


def view_of(database: Database, ref: JobRef) -> reading.JobView:
    with database.read() as connection:
        return reading.fetch_placed_view(connection, ref.job)


def commit(database: Database, tenure: agency.Tenure, **parts) -> None:
    with database.write(5) as connection:
        agency.commit_ledger(connection, agency.Ledger(NOW, **parts), tenure)


def take_over(database: Database) -> agency.Tenure:
    with database.write(5) as connection:
        return agency.begin_tenure(connection, "here")


# -- the seam ----------------------------------------------------------------------------------------------------------

SQLITE_NAMES = [name for name in dir(sqlite3) if name.startswith("SQLITE_") and name.count("_") == 1]
TRANSIENT = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT", "SQLITE_NOMEM", "SQLITE_FULL"}


def sqlite_error(name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize("name", [*SQLITE_NAMES, "SQLITE_IOERR_WRITE", "SQLITE_BUSY_SNAPSHOT", "SQLITE_CORRUPT_INDEX"])
def test_every_error_of_sqlite_becomes_one_of_the_contract(name, tmp_path) -> None:
    translated = translate_sqlite("write", tmp_path, sqlite_error(name))
    is_transient = any(name == one or name.startswith(f"{one}_") for one in TRANSIENT | {"SQLITE_IOERR"})
    assert isinstance(translated, UnavailableError if is_transient else RefusedError)
    assert name in str(translated)
    assert str(tmp_path) in str(translated)


@pytest.mark.parametrize(
    "kind", [sqlite3.Warning, *sqlite3.Error.__subclasses__(), *sqlite3.DatabaseError.__subclasses__()]
)
def test_every_class_of_sqlite_errors_is_translated_also_without_a_code(kind, tmp_path) -> None:
    with pytest.raises(AdapterError, match="said by Python"), translating("read", tmp_path):
        raise kind("said by Python")


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_error_of_the_system_becomes_one_of_the_contract(number, tmp_path) -> None:
    translated = translate_os("read", tmp_path, OSError(number, os.strerror(number)))
    assert isinstance(translated, RefusedError | UnavailableError)
    assert translated.is_retryable == (number in {
        errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
        errno.ENOSPC, errno.ETIMEDOUT, errno.EDEADLK, errno.ENOLCK,
    })  # fmt: skip


def test_nobody_but_the_store_imports_sqlite() -> None:
    importers = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import) and any(alias.name == "sqlite3" for alias in node.names):
                importers.add(path.parent.name)
    assert importers == {"store"}


# -- how it comes into being -------------------------------------------------------------------------------------------


def test_a_new_store_belongs_to_its_owner_alone(database, layout) -> None:
    add(database)
    assert stat.S_IMODE(layout.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(layout.folder.parent.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in layout.folder.iterdir()}
    assert files == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_a_folder_that_others_could_read_is_closed_to_them(database, layout) -> None:
    layout.folder.mkdir(parents=True, mode=0o777)
    layout.folder.chmod(0o777)
    add(database)
    assert stat.S_IMODE(layout.folder.stat().st_mode) == 0o700


def test_stores_made_at_the_same_time_are_one(layout) -> None:
    found, barrier = [], threading.Barrier(8)

    def make() -> None:
        with contextlib.closing(Database(layout)) as own:
            barrier.wait()
            with own.read() as connection:
                found.append(reading.fetch_meta(connection)["store"])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [path.name for path in layout.folder.iterdir() if path.name.startswith(".")] == []


def test_a_store_that_was_taken_away_is_not_written_to(database, layout) -> None:
    old = add(database)
    for path in layout.folder.iterdir():
        path.unlink()
    new = add(database)
    assert view_of(database, old).pairs == ()
    assert view_of(database, new).pairs != ()
    assert database.openings == 2


def test_a_store_of_a_newer_version_is_refused(database, layout) -> None:
    add(database)
    with contextlib.closing(sqlite3.connect(layout.database)) as other:
        other.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    assert not database.has_own_schema()
    with contextlib.closing(Database(layout)) as fresh, pytest.raises(RefusedError, match="version 2"):
        add(fresh)


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 22 0:41 / /home/ann/with\\040space rw - fuse.sshfs ann@host: rw
32 22 0:42 / /data rw - ext4 /dev/vdb rw
33 22 0:43 / /data rw - cifs //server/data rw
a line that nobody understands
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/x", "ext4"),
        ("/home/ann/store", "nfs4"),
        ("/homestead", "ext4"),
        ("/home/ann/with space/store", "fuse.sshfs"),
        ("/data/store", "cifs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(folder, kind) -> None:
    assert place.derive_file_system(MOUNTS, Path(folder)) == kind
    assert (kind in place.NETWORK_TYPES) == (kind != "ext4")


def test_the_file_system_of_a_real_folder_is_told(tmp_path) -> None:
    assert place.fetch_file_system(tmp_path) not in {"", *place.NETWORK_TYPES}


def test_a_network_file_system_is_refused(tmp_path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"22 1 0:40 / / rw - ext4 /dev/vda rw\n30 22 0:41 / {tmp_path} rw - nfs4 server:/ rw\n")
    with pytest.raises(RefusedError, match=r"network file system \(nfs4\)"):
        place.ensure_folder(tmp_path / "dispatch" / "s", mounts=mounts)
    assert place.fetch_file_system(tmp_path, mounts=tmp_path / "none") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(layout) -> None:
    layout.folder.mkdir(parents=True)
    os.chown(layout.folder, 65534, 65534)
    with pytest.raises(RefusedError, match="belongs to user 65534"):
        place.ensure_folder(layout.folder)


# -- what can go wrong -------------------------------------------------------------------------------------------------


def test_a_full_store_says_so_and_holds_what_it_held(database) -> None:
    ref = add(database)
    with database.write(5) as connection:
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
    large = JobSpec(command=["true", "x" * 200_000])
    other = new_job()
    with pytest.raises(UnavailableError, match="full") as caught:
        add(database, job=other, spec=large)
    assert caught.value.is_retryable
    with database.read() as connection:
        assert reading.fetch_view(connection, other) == reading.JobView(other)
    assert len(view_of(database, ref).pairs) == 1
    with database.write(5) as connection:
        connection.execute("PRAGMA max_page_count = 100000")
    assert add(database, job=other, spec=large).job == other


@pytest.mark.parametrize("damage", ["header", "pages", "emptied"])
def test_a_damaged_store_is_refused(database, layout, damage) -> None:
    add(database)
    database.close()
    content = layout.database.read_bytes()
    spoilt = {"header": b"no database" * 500, "pages": content[:100] + b"\xff" * (len(content) - 100), "emptied": b""}
    layout.database.write_bytes(spoilt[damage])
    with pytest.raises(RefusedError):
        add(database)


def test_a_store_that_can_only_be_read_is_read_and_not_written(database) -> None:
    ref = add(database)
    with database.read() as connection:
        connection.execute("PRAGMA query_only = ON")
    assert len(view_of(database, ref).pairs) == 1
    with pytest.raises(RefusedError, match="read-only"):
        add(database)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_and_changes_nothing(database, layout, tmp_path) -> None:
    add(database)
    database.close()
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    before = sorted(path.name for path in layout.folder.iterdir())
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        try:
            add(Database(layout))
        except AdapterError as error:
            os.write(write_fd, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd) as told:
        answer = told.read()
    os.waitpid(pid, 0)
    assert answer.startswith("RefusedError: ")
    assert "Permission denied" in answer
    assert sorted(path.name for path in layout.folder.iterdir()) == before


def test_a_call_waits_for_another_writer_no_longer_than_it_may(database, layout) -> None:
    ref = add(database)
    with contextlib.closing(sqlite3.connect(layout.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="somebody else is writing"), database.write(0.2):
            pytest.fail("there were two writers at once")
        assert time.monotonic() - began < 5
        assert len(view_of(database, ref).pairs) == 1


@pytest.mark.parametrize("patience", [0.0, -5.0])
def test_after_its_deadline_nothing_is_written(database, patience) -> None:
    ref = add(database)
    with pytest.raises(UnavailableError), database.write(patience):
        pytest.fail("it was too late to write")
    assert len(view_of(database, ref).pairs) == 1


def test_what_fails_half_way_leaves_nothing(database) -> None:
    request = StartRequest(new_job(), 1, 1, SPEC)
    with pytest.raises(AssertionError, match="half way"), database.write(5) as connection:
        assert intents.add_submission(connection, request, ACCEPTED, NOW).job == "something else", "half way"
    with database.read() as connection:
        assert reading.fetch_view(connection, request.job) == reading.JobView(request.job)
        assert reading.fetch_wishes(connection, 0) == []


# -- what it keeps -----------------------------------------------------------------------------------------------------


def test_text_of_users_comes_back_as_it_was(database) -> None:
    job = new_job()
    owner = Owner("größe\0", "dag \N{SNOWMAN}", "run\n", "t" * 300, instance_id="\ud800")
    spec = JobSpec(command=["echo", "\N{SNOWMAN} ' \" ; --"], labels={"ключ": "значение\0"})
    with database.write(5) as connection:
        intents.add_submission(connection, StartRequest(job, 1, 1, spec, owner), ACCEPTED, NOW)
    with database.read() as connection:
        view = reading.fetch_view(connection, job)
    assert view.deployment == "größe\0"
    assert view.pairs[0][0].request == StartRequest(job, 1, 1, spec, owner)


def test_a_hold_taken_back_before_the_agent_looked_is_foreseen_to_end_the_execution(database) -> None:
    ref = add(database)
    key = (ref.job, 1)
    tenure = take_over(database)
    submission = view_of(database, ref).pairs[0][0]
    identity = Identity(ref.job, 1, 1, 1, 0)
    execution = Execution(identity, (RankStatus("node", 0, is_started=True),), NOW)
    running = Status(identity, 1, execution, queued_since=NOW)
    with database.write(5) as connection:
        intents.change_intent(connection, ref, lambda s, _: rules.open_gate(s, NOW))
    opened = view_of(database, ref).pairs[0][0]
    commit(database, tenure, statuses={key: running}, submissions={key: opened}, seen={key: opened}, last_wish=2)
    assert submission.opened_at is None
    request = HoldRequest("k", ANN)
    with database.write(5) as connection:
        held = intents.change_intent(connection, ref, lambda s, t: rules.hold(s, t, request, NOW)[0])
    with database.write(5) as connection:
        intents.change_intent(connection, ref, lambda s, _: rules.release(s, held.holds.active[0]))
    view = view_of(database, ref)
    assert view.needs_agent
    assert view.pairs[0][1].execution == replace(execution, ending=Ending.HOLD)
    assert view.observe(ref, "", NOW).state is State.QUEUED
    with database.read() as connection:
        wishes = reading.fetch_wishes(connection, 2)
        assert [wish.submission.holds.is_held for wish in wishes] == [True, False]
    commit(database, tenure, seen={key: wishes[-1].submission}, last_wish=wishes[-1].sequence)
    with database.read() as connection:
        assert reading.fetch_wishes(connection, 0) == []


def test_an_agent_that_was_replaced_cannot_write(database) -> None:
    ref = add(database)
    old = take_over(database)
    assert take_over(database).generation == old.generation + 1
    with pytest.raises(agency.OustedError, match=f"generation {old.generation}"):
        commit(database, old, notes=[Note((ref.job, 1), "kind", "message")])
    with database.read() as connection:
        assert reading.fetch_events(connection, ref.job, None) == []


def test_an_agent_whose_store_was_made_anew_cannot_write_into_the_new_one(database) -> None:
    ref = add(database)
    tenure = take_over(database)
    with pytest.raises(agency.OustedError, match="removed and made anew"):
        commit(database, replace(tenure, store="another"), notes=[Note((ref.job, 1), "kind", "message")])
    with database.read() as connection:
        assert reading.fetch_events(connection, ref.job, None) == []


def test_a_removal_leaves_ledger_reason_and_history(database) -> None:
    ref = add(database)
    with database.write(5) as connection:
        before = intents.stop_all(connection, ref.job, reason="no \0 more", if_owner=None, now=NOW)
    assert before.pairs[0][0].stop is None
    tenure = take_over(database)
    key = (ref.job, 1)
    commit(database, tenure, removed=[RemoveSubmission(key)], notes=[Note(key, "stopped", "gone \ud800")])
    commit(database, tenure, removed=[RemoveSubmission(key)])
    view = view_of(database, ref)
    assert (view.ledger, view.pairs, view.stop_reason, view.needs_agent) == (1, (), "no \0 more", False)
    seen = view.observe(ref.job, "place", NOW)
    assert (seen.state, seen.cause, seen.detail) == (State.GONE, "stopped", "no \0 more")
    assert view.observe(replace(ref, submission=2), "", NOW).is_unheard_of
    with database.read() as connection:
        assert [event.message for event in reading.fetch_events(connection, ref.job, 1)] == ["gone \ud800"]


def test_a_hold_that_ran_out_is_lifted_once(database) -> None:
    ref = add(database)
    request = HoldRequest("k", ANN, until=NOW + timedelta(days=1))
    with database.write(5) as connection:
        held = intents.change_intent(connection, ref, lambda s, t: rules.hold(s, t, request, NOW)[0])
    tenure = take_over(database)
    lift = LiftHold((ref.job, 1), held.holds.active[0])
    commit(database, tenure, lifted=[lift])
    commit(database, tenure, lifted=[lift, LiftHold((new_job(), 1), held.holds.active[0])])
    with database.read() as connection:
        assert len(reading.fetch_wishes(connection, 0)) == 3
    assert not view_of(database, ref).pairs[0][0].holds.is_held


def test_positions_count_by_priority_then_by_waiting_within_a_queue(database) -> None:
    tenure = take_over(database)
    order = [("q", 0, 1), ("q", 0, 2), ("q", 5, 3), ("other", 0, 0)]
    refs = [add(database, queue=queue, priority=priority) for queue, priority, _ in order]
    for ref, (_, _, since) in zip(refs, order, strict=True):
        with database.write(5) as connection:
            opened = intents.change_intent(connection, ref, lambda s, _: rules.open_gate(s, NOW))
        key = (ref.job, 1)
        status = Status(queued_since=NOW + timedelta(seconds=since))
        commit(database, tenure, statuses={key: status}, submissions={key: opened})
    assert [view_of(database, ref).position for ref in refs] == [2, 3, 1, 1]


def test_changes_are_told_in_order_until_they_are_pruned(database) -> None:
    refs = [add(database) for _ in range(3)]
    with database.read() as connection:
        changes = reading.fetch_changes(connection, 1)
        assert changes is not None
        assert [(change.job, change.kind) for change in changes] == [(ref.job, reading.INTENT) for ref in refs[1:]]
        assert reading.fetch_changes(connection, 3) == []
    with database.write(5) as connection:
        connection.execute("DELETE FROM change WHERE sequence <= 2")
    with database.read() as connection:
        assert reading.fetch_changes(connection, 1) is None
        assert reading.fetch_last_change(connection) == 3


def test_the_newest_submission_of_each_job_is_listed_oldest_job_first(database) -> None:
    first = add(database)
    second = add(database, now=NOW + timedelta(seconds=1))
    tenure = take_over(database)
    key = (first.job, 1)
    ended = Status(end=State.FAILED)
    commit(database, tenure, statuses={key: ended}, submissions={key: view_of(database, first).pairs[0][0]})
    again = add(database, job=first.job, submission=2, now=NOW + timedelta(seconds=2))
    with database.read() as connection:
        listed = reading.fetch_newest(connection, ())
        assert [submission.ref for submission, _, _ in listed] == [second, again]
        assert reading.fetch_newest(connection, [State.FAILED]) == []
        unfinished = reading.fetch_unfinished(connection)
    assert [row.intent.ref for row in unfinished] == [second, again]
