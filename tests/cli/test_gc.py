# SPDX-License-Identifier: Apache-2.0
"""The verb `gc`: what it calls garbage, what it keeps, and what it says of both."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobRecord, Leftover
from airflow_provider_dispatch.exceptions import ConflictError
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from tests.cli.calling import Answer
from tests.cli.conftest import FakeWorld, write_settings

NOBODYS = JobID("01ARZ3NDEKTSV4RRFFQ69G5FAV")
RUNTIME = Leftover(NOBODYS, "runtime r", "1", detail="its job is gone")
POD = Leftover(NOBODYS, "pod p", "2", kept_because="it is being removed")
LEDGER = Leftover(NOBODYS, "ledger l", "3")


class OrphanedAdapter(FakeAdapter):
    """Every job of its has an orphan until it is stopped."""

    has_orphans = True
    is_stubborn = False
    ended_at: datetime | None = None

    async def find(self, job):
        record = await super().find(job)
        submissions = tuple(replace(one, ended_at=self.ended_at) for one in record.submissions)
        return JobRecord(record.job, record.ledger, submissions, ("process 7",) if self.has_orphans else ())

    async def stop(self, job, **more):
        report = await super().stop(job, **more)
        self.has_orphans = self.is_stubborn
        return report


class Litter:
    """Objects that belong to nobody."""

    def __init__(self) -> None:
        self.objects = [RUNTIME, POD]
        self.ledgers = [LEDGER]
        self.is_stubborn = False

    async def find(self, *, jobs: Collection[JobID], with_ledgers: bool) -> Sequence[Leftover]:
        found = [*self.objects, *(self.ledgers if with_ledgers else [])]
        return [one for one in found if not jobs or one.job in jobs]

    async def remove(self, found: Leftover, *, deadline: datetime) -> str:
        assert deadline.tzinfo is not None
        if self.is_stubborn:
            return "it is still there"
        (self.objects if found in self.objects else self.ledgers).remove(found)
        return ""


class LitteredAdapter(OrphanedAdapter):
    """One that removes such objects by themselves."""

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self.leftovers = Litter()


def rows(answer: Answer) -> list[tuple[str, str]]:
    return [(row["object"], row["outcome"]) for row in answer.data]


def end_job(fake: FakeWorld, age: timedelta = timedelta(minutes=1)) -> JobID:
    """Start a job and let it end, so long ago."""
    fake.backend.now = datetime.now(UTC) - age
    job = JobID(fake.dispatch.json("start", "--open", "--", "run")["job"])
    fake.backend.finish((job, 1))
    return job


def test_an_orphan_of_a_job_that_is_over_goes_and_of_a_live_one_stays(fake: FakeWorld) -> None:
    job = fake.dispatch.json("start", "--open", "--", "run")["job"]
    fake.adapter = OrphanedAdapter(fake.backend)

    live = fake.dispatch("gc", "--yes", "-o", "json")
    fake.backend.finish((job, 1))
    shown = fake.dispatch("gc", "-o", "json")
    gone = fake.dispatch("gc", "--yes", "-o", "json")

    assert rows(live) == [("process 7", "kept: the job is running; stop it by hand")]
    assert (rows(shown), "--yes" in shown.err) == ([("process 7", "may be removed")], True)
    assert (gone.code, rows(gone), fake.fake.calls.count("stop")) == (0, [("process 7", "removed")], 1)


def test_what_could_not_be_removed_is_told(fake: FakeWorld) -> None:
    job = end_job(fake)
    fake.adapter = adapter = OrphanedAdapter(fake.backend)
    adapter.is_stubborn = True

    answer = fake.dispatch("gc", job, "--yes", "-o", "json")

    assert (answer.code, rows(answer)) == (1, [("process 7", "left: process 7")])


def test_a_backend_removes_by_itself_what_belongs_to_no_submission(fake: FakeWorld) -> None:
    end_job(fake)
    fake.adapter = adapter = LitteredAdapter(fake.backend)

    shown = fake.dispatch("gc", "-o", "json")
    first = fake.dispatch("gc", "--yes", "-o", "json")
    second = fake.dispatch("gc", "--forget", "--yes", "-o", "json")

    kept = ("pod p", "kept: it is being removed")
    assert rows(shown) == [("runtime r", "may be removed"), kept]
    assert (rows(first), rows(second)) == ([("runtime r", "removed"), kept], [kept, ("ledger l", "removed")])
    assert (adapter.leftovers.objects, adapter.leftovers.ledgers) == ([POD], [])
    assert adapter.calls.count("stop") == 0


def test_what_a_backend_could_not_remove_is_told_with_the_reason(fake: FakeWorld) -> None:
    fake.adapter = adapter = LitteredAdapter(fake.backend)
    adapter.leftovers.is_stubborn = True

    answer = fake.dispatch("gc", NOBODYS, "--yes", "-o", "json")

    assert (answer.code, rows(answer)[0]) == (1, ("runtime r", "left: it is still there"))


def test_only_the_jobs_that_are_named_are_looked_at(fake: FakeWorld) -> None:
    fake.adapter = LitteredAdapter(fake.backend)

    assert fake.dispatch("gc", "01BX5ZZKBKACTAV9WEVGEMMVRZ").out == "nothing to remove\n"


def test_a_ledger_that_a_backend_keeps_is_not_forgotten(fake: FakeWorld) -> None:
    answer = fake.dispatch("gc", "--forget")

    assert (answer.code, "keeps its ledger" in answer.err) == (5, True)


def test_a_young_end_is_no_garbage(fake: FakeWorld) -> None:
    end_job(fake)

    assert fake.dispatch("gc", "--ended", "1h").out == "nothing to remove\n"


def test_a_job_is_as_old_as_its_end_and_not_as_its_start(fake: FakeWorld) -> None:
    """Where the backend has forgotten its events, the job itself tells."""
    job = end_job(fake, timedelta(days=8))
    fake.adapter = adapter = LitteredAdapter(fake.backend)
    adapter.leftovers.objects.clear()

    adapter.ended_at = datetime.now(UTC) - timedelta(hours=1)
    young = fake.dispatch("gc", "--ended", "7d", "-o", "json")
    adapter.ended_at = datetime.now(UTC) - timedelta(days=8)
    old = fake.dispatch("gc", "--ended", "7d", "--yes", "-o", "json")

    assert (rows(young), rows(old)) == ([], [(f"job {job}", "removed")])


def test_a_job_of_another_deployment_stays(fake: FakeWorld) -> None:
    job = end_job(fake)
    write_settings(fake.path, {"backend": "fake", "deployment": "blue"})
    fake.adapter = adapter = OrphanedAdapter(fake.backend)

    named = fake.dispatch("gc", job, "--ended", "0s", "--yes", "-o", "json")

    assert rows(named) == [(f"job {job}", "kept: it belongs to deployment ''")]
    assert fake.dispatch("gc", "--ended", "0s", "--yes").out == "nothing to remove\n"
    assert adapter.calls.count("stop") == 0


def test_a_job_that_is_begun_anew_meanwhile_stays(fake: FakeWorld) -> None:
    job = end_job(fake)

    class TakenAdapter(OrphanedAdapter):
        has_orphans = False

        async def stop(self, job, *, if_owner: Owner | None = None, **more):
            assert if_owner == Owner()
            raise ConflictError("somebody else owns it")

    fake.adapter = TakenAdapter(fake.backend)

    answer = fake.dispatch("gc", "--ended", "0s", "--yes", "-o", "json")

    assert (answer.code, rows(answer)) == (1, [(f"job {job}", "left: somebody else owns it")])
