# SPDX-License-Identifier: Apache-2.0
"""Where a file is wrong is told, and never what stands there."""

from __future__ import annotations

import pytest
import yaml

from airflow_provider_dispatch.core.validation import describe_place


def test_a_place_is_told_without_its_content() -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.safe_load("user:\n  token: !hush")

    assert "hush" in str(caught.value)
    assert describe_place(caught.value) == " in line 2, column 10"


def test_an_error_without_a_place_says_nothing() -> None:
    assert describe_place(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "hush")) == ""
