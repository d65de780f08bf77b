# SPDX-License-Identifier: Apache-2.0
"""Quantities as Kubernetes writes them, read exactly and rounded up."""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.quantity import LARGEST, format_quantity, parse_quantity
from airflow_provider_dispatch.exceptions import SpecError

UNITS: dict[str, int | Fraction] = {
    "": 1, "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": 10**3, "M": 10**6, "G": 10**9,
    "T": 10**12, "P": 10**15, "E": 10**18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
    "Ei": 2**60, "e3": 1000, "E+3": 1000, "e-3": Fraction(1, 1000), "E00": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "text", "amount"),
    [
        ("cpu", "500m", 500),
        ("cpu", "2", 2000),
        ("cpu", "1.5", 1500),
        ("cpu", "100u", 1),
        ("cpu", "1n", 1),
        ("cpu", "0", 0),
        ("cpu", 2, 2000),
        ("cpu", 0.1, 100),
        ("cpu", 1e-7, 1),
        ("cpu", "1k", 1_000_000),
        ("memory", "1Gi", 2**30),
        ("memory", "1.5Gi", 3 * 2**29),
        ("memory", "1G", 10**9),
        ("memory", "128974848", 128974848),
        ("memory", "129e6", 129_000_000),
        ("memory", "1E", 10**18),
        ("memory", "1E1", 10),
        ("memory", "1e+2", 100),
        ("memory", "15e-1", 2),
        ("memory", "1.", 1),
        ("memory", ".5Ki", 512),
        ("memory", "1m", 1),
        ("memory", "1.0000000000000000000000000001", 2),
        ("memory", str(2**63 - 1), 2**63 - 1),
        ("cpu", "9223372036854775807m", 2**63 - 1),
        ("nvidia.com/gpu", "3", 3),
    ],
)
def test_a_quantity_is_read(resource: str, text: str | float, amount: int) -> None:
    assert parse_quantity(resource, text) == amount


NO_NUMBER = ["", "-1", "+1", " 1", "1\n", "Gi", ".", "1..2", "0x1", "1_000", "nan", "inf", "٣", "None", "1" * 31]
NO_UNIT = ["1 Gi", "1gi", "1K", "1KI", "1e", "1e100", "1Gi3", "1." + "0" * 31]
NO_TEXT = [True, False, math.nan, math.inf, -0.5]


@pytest.mark.parametrize("value", [*NO_NUMBER, *NO_UNIT, *NO_TEXT])
def test_what_is_no_quantity_is_refused(value: str | float) -> None:
    with pytest.raises(SpecError) as caught:
        parse_quantity("cpu", value, field="request")

    assert str(caught.value).startswith(f"request.cpu = {value!r}"[:60])
    assert str(caught.value).endswith(": must be a quantity that is not negative, such as 500m, 2 or 1Gi")


@pytest.mark.parametrize(
    ("resource", "text"),
    [("memory", "9223372036854775808"), ("memory", "8Ei"), ("memory", "1e99"), ("cpu", "9223372036854775807.1m")],
)
def test_more_than_any_machine_has_is_refused(resource: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_quantity(resource, text)

    assert str(caught.value) == f"resources.{resource} = {text!r}: is larger than any machine"


@given(st.integers(0, 10**6), st.integers(0, 10**6 - 1), st.sampled_from([*UNITS]), st.sampled_from(["cpu", "memory"]))
def test_every_unit_is_read_exactly_and_rounded_up(whole: int, decimals: int, unit: str, resource: str) -> None:
    text = f"{whole}.{decimals:06}{unit}"
    exact = (whole + Fraction(decimals, 10**6)) * UNITS[unit] * (1000 if resource == "cpu" else 1)

    if exact <= LARGEST:
        assert parse_quantity(resource, text) == math.ceil(exact)
    else:
        with pytest.raises(SpecError, match="larger than any machine"):
            parse_quantity(resource, text)


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 0, "0"),
        ("cpu", 500, "500m"),
        ("cpu", 999, "999m"),
        ("cpu", 1000, "1"),
        ("cpu", 1001, "1001m"),
        ("cpu", 64_000, "64"),
        ("memory", 0, "0"),
        ("memory", 1023, "1023"),
        ("memory", 1024, "1Ki"),
        ("memory", 1536, "1536"),
        ("memory", 3 * 2**29, "1536Mi"),
        ("memory", 2**30, "1Gi"),
        ("memory", 2**40, "1Ti"),
        ("memory", 2**60, "1Ei"),
        ("memory", 10**9, "1000000000"),
        ("gpu", 1024, "1024"),
    ],
)
def test_an_amount_is_written_as_people_write_it(resource: str, amount: int, text: str) -> None:
    assert format_quantity(resource, amount) == text


@given(
    st.sampled_from(["cpu", "memory", "gpu"]),
    st.integers(0, LARGEST) | st.integers(0, 2**13 - 1).map(lambda n: n * 2**50),
)
def test_what_is_written_is_read_back(resource: str, amount: int) -> None:
    assert parse_quantity(resource, format_quantity(resource, amount)) == amount


def test_the_caller_s_idea_of_precision_changes_nothing() -> None:
    with decimal.localcontext() as context:
        context.prec = 3
        assert parse_quantity("memory", "123456789") == 123_456_789
