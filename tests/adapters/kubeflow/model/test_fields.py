# SPDX-License-Identifier: Apache-2.0
"""Times as objects say them: an annotation may hold anything, and none of it may stop who reads it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import fields

NOON = datetime(2026, 9, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "stamp",
    ["2026-09-01T12:00:00Z", "2026-09-01T12:00:00.000000+00:00", "2026-09-01T14:00:00+02:00", "2026-09-01T12:00:00"],
)
def test_a_time_is_read_in_utc(stamp: str) -> None:
    parsed = fields.parse_time(stamp)
    assert parsed == NOON
    assert parsed is not None
    assert fields.format_time(parsed) == "2026-09-01T12:00:00.000000Z"


@pytest.mark.parametrize("stamp", ["", "soon", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-13-01"])
def test_what_is_no_time_is_none(stamp: str) -> None:
    assert fields.parse_time(stamp) is None
    assert fields.moment({"spec": {"renewTime": stamp}}, "spec", "renewTime") is None
