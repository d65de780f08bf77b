# SPDX-License-Identifier: Apache-2.0
"""Values of secrets out of files: which are taken, which are refused and with what words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.local.agent.secret_files import (
    LARGEST_VALUE_BYTES,
    UnusableSecretError,
    read_secrets,
)

VALUE = b"hush-hush"


def write(folder: Path, content: bytes = VALUE, *, name: str = "team", key: str = "token", mode: int = 0o600) -> Path:
    path = folder / name / key
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def refuse(folder: Path) -> str:
    with pytest.raises(UnusableSecretError) as caught:
        read_secrets(folder, {"TOKEN": "team/token"})
    assert VALUE.decode() not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"hush", "hush"),
        (b"hush\n", "hush"),
        (b"two\nlines\n\n", "two\nlines\n"),
        ("grün".encode(), "grün"),
        (b"\xff", "\udcff"),
        (b"", ""),
        (b"x" * LARGEST_VALUE_BYTES, "x" * LARGEST_VALUE_BYTES),
    ],
)
def test_a_value_is_what_the_file_holds_but_for_the_end_of_its_last_line(tmp_path, content, value) -> None:
    write(tmp_path, content)

    assert read_secrets(tmp_path, {"TOKEN": "team/token"}) == {"TOKEN": value}


def test_several_variables_may_come_from_one_secret(tmp_path) -> None:
    write(tmp_path, b"a", key="user", mode=0o400)
    write(tmp_path, b"b", key="password")

    found = read_secrets(tmp_path, {"USER": "team/user", "PASSWORD": "team/password", "AGAIN": "team/user"})

    assert found == {"USER": "a", "PASSWORD": "b", "AGAIN": "a"}
    assert read_secrets(tmp_path / "nowhere", {}) == {}


def test_a_secret_that_is_not_there_is_named_with_its_place(tmp_path) -> None:
    path = tmp_path / "team/token"

    assert refuse(tmp_path) == f"there is no secret team/token: write its value to {path}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_can_open_is_refused_with_the_cure(tmp_path, mode) -> None:
    path = write(tmp_path, mode=mode)

    assert refuse(tmp_path) == f"secret team/token is open to other users: chmod 600 {path}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_refused(tmp_path) -> None:
    path = write(tmp_path)
    os.chown(path, 12345, -1)

    assert refuse(tmp_path) == f"secret team/token in {path} belongs to somebody else; make a file of your own"


def test_a_link_is_not_followed(tmp_path) -> None:
    target = write(tmp_path, key="other")
    (tmp_path / "team/token").symlink_to(target)

    assert refuse(tmp_path).startswith(f"secret team/token can't be read from {tmp_path}/team/token: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x" * (LARGEST_VALUE_BYTES + 1), f"has more than {LARGEST_VALUE_BYTES} bytes"),
        (VALUE + b"\0", "holds a NUL, which no variable can"),
    ],
)
def test_what_no_variable_can_hold_is_refused_unseen(tmp_path, content, said) -> None:
    path = write(tmp_path, content)

    assert refuse(tmp_path) == f"secret team/token in {path} {said}"
