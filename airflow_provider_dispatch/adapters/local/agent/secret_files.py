# SPDX-License-Identifier: Apache-2.0
"""Values of secrets, out of files that only the agent's user can read. The executions ask when a role is started.

A value goes to the ranks and nowhere else: what is said of a file names it, and nothing of its content.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_dispatch.adapters.local.logs import open_regular_file
from airflow_provider_dispatch.core.secret_reference import SecretReference, parse_secret_reference

LARGEST_VALUE_BYTES = 64 * 1024
"""Linux takes 128 KiB for a variable with its name."""


class UnusableSecretError(Exception):
    """A secret isn't there, isn't safe, or can't be a variable; the message says which and what to do."""


def read_secrets(folder: Path, references: Mapping[str, str]) -> dict[str, str]:
    """The variables of a role, with their values.

    :param folder: of the store's secrets, a folder each with a file for each key.
    :param references: variable to reference.
    :raises UnusableSecretError: for the first that can't be had.
    """
    return {name: _read_secret(folder, parse_secret_reference(reference)) for name, reference in references.items()}


def _read_secret(folder: Path, reference: SecretReference) -> str:
    path = folder / reference.name / reference.key
    try:
        with open_regular_file(path) as file:
            _check_mode(reference, path, os.fstat(file.fileno()))
            content = file.read(LARGEST_VALUE_BYTES + 1)
    except FileNotFoundError:
        raise UnusableSecretError(f"there is no secret {reference}: write its value to {path}") from None
    except OSError as error:
        raise UnusableSecretError(f"secret {reference} can't be read from {path}: {error.strerror}") from None
    if len(content) > LARGEST_VALUE_BYTES:
        raise UnusableSecretError(f"secret {reference} in {path} has more than {LARGEST_VALUE_BYTES} bytes")
    if b"\0" in content:
        raise UnusableSecretError(f"secret {reference} in {path} holds a NUL, which no variable can")
    # An editor ends the last line; no token does.
    return content.removesuffix(b"\n").decode("utf-8", "surrogateescape")


def _check_mode(reference: SecretReference, path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise UnusableSecretError(f"secret {reference} in {path} belongs to somebody else; make a file of your own")
    if stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise UnusableSecretError(f"secret {reference} is open to other users: chmod 600 {path}")
