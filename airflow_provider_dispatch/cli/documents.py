# SPDX-License-Identifier: Apache-2.0
"""Reads the YAML and JSON files that people hand to the command. Errors say where, and show nothing of the content."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from airflow_provider_dispatch.core.validation import describe_place
from airflow_provider_dispatch.exceptions import SpecError

STANDARD_INPUT = Path("-")


def read_document(option: str, path: Path) -> object:
    """The one document of a file; JSON is YAML, too.

    :param path: ``-`` means standard input.
    :raises SpecError: it can't be read, or isn't YAML.
    """
    try:
        text = sys.stdin.read() if path == STANDARD_INPUT else path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(option, f"can't be read: {error.strerror}", str(path)) from None
    except UnicodeError:
        raise SpecError(option, "can't be read: it is not UTF-8", str(path)) from None
    try:
        document: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(option, f"is neither YAML nor JSON{describe_place(error)}", str(path)) from None
    return document
