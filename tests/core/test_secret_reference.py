# SPDX-License-Identifier: Apache-2.0
"""What names a secret, and what doesn't; the latter is never repeated."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.secret_reference import SecretReference, parse_secret_reference

LONGEST = "n" * 253


@pytest.mark.parametrize(
    ("text", "name", "key"),
    [
        ("team/token", "team", "token"),
        ("a/b", "a", "b"),
        ("my.team-1/TLS_key.pem", "my.team-1", "TLS_key.pem"),
        ("team/.hidden", "team", ".hidden"),
        (f"{LONGEST}/{LONGEST}", LONGEST, LONGEST),
    ],
)
def test_a_reference_is_a_secret_and_a_key(text: str, name: str, key: str) -> None:
    reference = parse_secret_reference(text)

    assert reference == SecretReference(name, key)
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "team", "team/", "/token", "team/a/b", "../token", "team/..", "team/.", "team/..x", "Team/token",
        "team-/token", "-team/token", "team/to ken", "team/token\n", "tëam/token", f"n{LONGEST}/k", f"n/k{LONGEST}",
    ],
)  # fmt: skip
def test_anything_else_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"^name a secret and a key in it, such as \S+; never the value itself$"):
        parse_secret_reference(text)


@given(st.from_regex(r"[-._a-z0-9/]{1,20}", fullmatch=True))
@example("a/...")
@example("a../b")
def test_no_reference_leads_out_of_a_folder(text: str) -> None:
    try:
        reference = parse_secret_reference(text)
    except ValueError:
        return
    assert {reference.name, reference.key}.isdisjoint({".", ".."})
    assert "/" not in reference.name + reference.key
