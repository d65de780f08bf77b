# SPDX-License-Identifier: Apache-2.0
"""A secret by its name: what a job says in place of a value that nobody may see.

A job spec holds such references; an adapter looks the value up where the ranks run. So no value passes through Airflow,
a store, an object of the cluster or this package's messages. Knows no value and looks nothing up.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# What Kubernetes takes as the name of a Secret and as a key in it; so neither leads out of a folder, either.
_REFERENCE = re.compile(r"(?P<name>[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)/(?P<key>(?!\.\.|\.$)[-._a-zA-Z0-9]{1,253})")


class SecretReference(NamedTuple):
    """A secret and a key in it."""

    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.name}/{self.key}"


def parse_secret_reference(text: str) -> SecretReference:
    """Read ``name/key``.

    :raises ValueError: something else. It isn't shown: whoever has misread this has written the value itself.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise ValueError("name a secret and a key in it, such as hugging-face/token; never the value itself")
    return SecretReference(match["name"], match["key"])
