# SPDX-License-Identifier: Apache-2.0
"""Pages that list fields, keys and errors list those there are, with their defaults."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from airflow_provider_dispatch import exceptions
from airflow_provider_dispatch.adapters.local.environment import build_base_environment
from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.scheduling.queue_file import DEFAULT_PRIORITIES, parse_queues
from airflow_provider_dispatch.adapters.local.settings import LocalSettings
from airflow_provider_dispatch.exceptions import DispatchError, JobFailedError, SpecError
from airflow_provider_dispatch.get_provider_info import get_provider_info
from airflow_provider_dispatch.hooks.settings import ConnectionSettings, parse_connection
from airflow_provider_dispatch.operators.arguments import CLOCK_OF_ARGUMENT
from airflow_provider_dispatch.testing.fake_backend import FakeBackend
from airflow_provider_dispatch.testing.fake_processes import FakeProgram, parse_program
from tests.docs.pages import read_blocks, read_rows, read_section, read_spans

MACHINE = {"cpu": 4000, "memory": 2**30, "ranks": 256}


def read_page(repository: Path, name: str) -> str:
    return (repository / "docs" / name).read_text()


def read_table(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of a section's first column → the others; without backticks."""
    return {row[0].strip("`"): [cell.strip("`") for cell in row[1:]] for row in read_rows(read_section(page, heading))}


# -- the connection --------------------------------------------------------------------------------------------------


def test_the_connection_page_has_every_field_with_its_default(repository: Path) -> None:
    rows = read_table(read_page(repository, "connection.md"), "Fields")
    defaults = {name: field.default for name, field in ConnectionSettings.model_fields.items()}

    assert list(rows) == list(defaults)
    assert {name: str(value) for name, value in defaults.items() if value is not None} == {
        name: cells[1] for name, cells in rows.items() if defaults[name] is not None
    }
    assert all(cells[1].startswith("the backend's own") for name, cells in rows.items() if defaults[name] is None)


def test_the_form_has_the_fields_of_the_page(repository: Path) -> None:
    rows = read_table(read_page(repository, "connection.md"), "Fields")
    (connection,) = json.loads(json.dumps(get_provider_info()))["connection-types"]

    assert list(connection["conn-fields"]) == list(rows)


def test_the_limits_of_the_page_are_those_of_the_settings(repository: Path) -> None:
    rows = read_table(read_page(repository, "connection.md"), "Fields")
    least, most = map(int, re.findall(r"\d+", rows["call_timeout_seconds"][2]))
    longest = int(re.findall(r"\d+", rows["deployment"][2])[1])

    ConnectionSettings(call_timeout_seconds=least, deployment="d" * longest)
    ConnectionSettings(call_timeout_seconds=most)
    for wrong in (
        {"call_timeout_seconds": most + 1},
        {"call_timeout_seconds": 0.5},
        {"deployment": "d" * (longest + 1)},
    ):
        with pytest.raises(ValidationError):
            ConnectionSettings(**wrong)


def test_the_connection_of_the_page_can_be_read(repository: Path) -> None:
    (shell,) = read_blocks(read_page(repository, "connection.md"), "console")
    connection = json.loads(shell.partition("='")[2].rpartition("'")[0])

    settings = parse_connection("dispatch_default", connection["conn_type"], json.dumps(connection["extra"]))

    assert (settings.deployment, settings.queue) == ("research", "team-a")


# -- queues ----------------------------------------------------------------------------------------------------------


def test_the_example_of_queues_toml_is_read(repository: Path) -> None:
    (example,) = read_blocks(read_page(repository, "queues.md"), "toml")

    content = parse_queues(tomllib.loads(example), default_capacity=MACHINE)

    assert {queue.name: (queue.weight, queue.is_stopped) for queue in content.queues} == {
        "default": (1, False),
        "team-a": (2, False),
        "team-b": (1, True),
    }
    assert content.capacity == {"cpu": 8000, "memory": 16 * 2**30, "gpu": 2, "ranks": 256}
    assert content.priorities["urgent"] == 1000


def test_the_queues_page_has_every_key_that_is_known(repository: Path) -> None:
    rows = read_table(read_page(repository, "queues.md"), "Keys")
    known = set()
    for table, prefix in (
        ({"?": 1}, ""),
        ({"node": {"?": 1}}, "node."),
        ({"queues": {"q": {"?": 1}}}, "queues.<name>."),
    ):
        with pytest.raises(SpecError) as refusal:
            parse_queues(table, default_capacity={})
        known |= {prefix + word for word in refusal.value.problem.partition("use one of ")[2].split(", ")}

    assert {*rows} - {"queues.<name>", *DEFAULT_PRIORITIES} == known - {"node", "queues"}


def test_the_defaults_of_the_queues_page_are_those_of_the_file(repository: Path) -> None:
    page = read_page(repository, "queues.md")
    named = {name: int(cells[0]) for name, cells in read_table(page, "Keys").items() if name in DEFAULT_PRIORITIES}
    rows, content = read_table(page, "Keys"), parse_queues({"queues": {"q": {}}}, default_capacity={})

    assert named == dict(DEFAULT_PRIORITIES)
    assert content.starvation_after == float(rows["starvation_after_seconds"][1])
    assert content.queues[0].weight == int(rows["queues.<name>.weight"][1])
    assert str(content.queues[0].is_stopped).lower() == rows["queues.<name>.stopped"][1]


# -- the local adapter -----------------------------------------------------------------------------------------------


def test_the_local_page_has_every_setting_with_its_default(repository: Path) -> None:
    rows = read_table(read_page(repository, "local.md"), "Settings in code")
    fields = LocalSettings.model_fields

    assert list(rows) == list(fields)
    assert {name: rows[name][1] for name in ("store", "deployment", "retire_after_seconds", "agent_start_seconds")} == {
        "store": fields["store"].default,
        "deployment": str(fields["deployment"].default),
        "retire_after_seconds": f"{fields['retire_after_seconds'].default:g}",
        "agent_start_seconds": f"{fields['agent_start_seconds'].default:g}",
    }


def test_the_local_page_names_the_variables_that_a_rank_may_inherit(repository: Path) -> None:
    (allowed,) = re.findall(r"They get (.*?) from whoever", read_page(repository, "local.md"), re.DOTALL)
    named = {name.replace("*", "ALL") for name in read_spans([allowed])}
    every = dict.fromkeys([*named, "AIRFLOW__CORE__FERNET_KEY", "AWS_SECRET_ACCESS_KEY"], "value")

    assert set(build_base_environment(every)) == named


def test_the_local_page_names_the_files_of_a_store(repository: Path) -> None:
    section = read_section(read_page(repository, "local.md"), "Where its files are")
    named = {name for row in read_rows(section) for name in read_spans([row[0]])}
    layout = StoreLayout(Path("/store"))
    single = (layout.database, layout.queues, layout.wake, layout.agent_lock, layout.agent_log)

    assert {path.name for path in single} == {name for name in named if "/" not in name}
    assert {name.partition("/")[0] for name in named if "/" in name} == {"jobs", layout.secrets.name}


# -- errors and arguments --------------------------------------------------------------------------------------------


def test_the_errors_page_says_of_each_type_whether_to_try_again(repository: Path) -> None:
    rows = read_table(read_page(repository, "errors.md"), "May I try again?")
    kinds = {
        name: kind
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and issubclass(kind, DispatchError) and not issubclass(kind, JobFailedError)
    }
    # Kinds that an adapter or the operators make for themselves are none of a reader's.
    leaves = {
        name
        for name, kind in kinds.items()
        if kinds.keys().isdisjoint(child.__name__ for child in kind.__subclasses__())
    }

    assert {*rows} == leaves | {"JobFailedError"}
    assert {name: cells[0].strip("*") == "yes" for name, cells in rows.items()} == {
        name: getattr(exceptions, name).is_retryable for name in rows
    }


def test_the_dags_page_has_every_clock(repository: Path) -> None:
    rows = read_table(read_page(repository, "dags.md"), "Time")

    assert [name for name in rows if name != "execution_timeout"] == list(CLOCK_OF_ARGUMENT)


# -- the fake --------------------------------------------------------------------------------------------------------


def test_the_testing_page_names_what_the_world_can_do(repository: Path) -> None:
    section = read_section(read_page(repository, "testing.md"), "What does it do? With the fake")
    calls = [span for row in read_rows(section) for span in re.findall(r"`world\.(\w+)\(", row[0])]

    assert len(calls) > 4
    assert [name for name in calls if not callable(getattr(FakeBackend, name, None))] == []


def test_the_testing_page_names_commands_that_the_fake_knows(repository: Path) -> None:
    section = read_section(read_page(repository, "testing.md"), "What does it do? With the fake")
    commands = [json.loads(row[0].strip("`")) for row in read_rows(section) if row[0].startswith("`[")]
    unknown = FakeProgram(exit_code=99)

    assert len(commands) > 4
    assert [command for command in commands if parse_program(tuple(command), unknown) == unknown] == []
