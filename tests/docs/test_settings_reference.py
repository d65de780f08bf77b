# SPDX-License-Identifier: Apache-2.0
"""The reference of settings has every model that reads settings, and says of each field what the code does."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from airflow_provider_dispatch.hooks.settings import ConnectionSettings
from docs._ext.settings_reference import MODES, Setting, build_table, describe_settings, read_form_labels


class Inner(BaseModel):
    """Inside.

    :param name: of it.
    """

    name: str = "x"


class Model(BaseModel):
    """A model.

    :param text: plain mode: a name that goes on
        in a second line; None means ``nothing``.
    :param count: how many.
    :param kind: which.
    :param inner: the one inside.
    :param names: all of them.
    :param is_on: whether.
    """

    text: Annotated[str, Field(min_length=1, max_length=9)] | int | None = None
    count: float = Field(default=1.50, gt=0, le=4)
    kind: Literal["a", "b"] = "a"
    inner: Inner | None = None
    names: tuple[Annotated[str, Field(pattern="^a|b$")], ...] = ()
    is_on: bool


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/reference/settings.md").read_text()


def find_models(page: str) -> list[type[BaseModel]]:
    named = re.findall(r"^```\{settings\} (\S+)\.(\w+)$", page, re.MULTILINE)
    return [getattr(importlib.import_module(module), name) for module, name in named]


def test_a_field_is_described_by_schema_and_docstring() -> None:
    assert describe_settings(Model) == [
        Setting(
            "text", "a name that goes on in a second line; none means `nothing`",
            "text of 1 to 9 characters or a whole number", "none", "plain mode",
        ),
        Setting("count", "how many", "a number above 0 up to 4", "`1.5`"),
        Setting("kind", "which", "`a` or `b`", "`a`"),
        Setting("inner", "the one inside", "the settings below", "none"),
        Setting("inner.name", "of it", "text", "`x`"),
        Setting("names", "all of them", "a list; each: text like `^a|b$`", "none"),
        Setting("is_on", "whether", "`true` or `false`", ""),
    ]  # fmt: skip


def test_a_field_that_nobody_has_described_ends_the_build() -> None:
    class Silent(BaseModel):
        """Says nothing."""

        field: int = 1

    with pytest.raises(LookupError, match="the docstring of Silent does not say what field means"):
        describe_settings(Silent)


def test_a_table_has_the_columns_that_say_something() -> None:
    plain, modal = Setting("a", "A", "x|y", "`1`"), Setting("b", "B", "text", "", "local")

    assert build_table([plain])[0] == "| setting | means | takes | default |"
    assert build_table([plain, modal], {"a": "Label"}) == [
        "| setting | in the form | counts | means | takes | default |",
        "| --- | --- | --- | --- | --- | --- |",
        "| `a` | Label |  | A | x\\|y | `1` |",
        "| `b` |  | local | B | text |  |",
    ]


def test_every_model_of_settings_is_on_the_page_with_all_its_fields(page: str, repository: Path) -> None:
    models = find_models(page)
    package = repository / "airflow_provider_dispatch"
    sources = [path.read_text() for path in (*package.rglob("settings.py"), package / "controller/config.py")]
    written = {name for text in sources for name in re.findall(r"^class (\w+)\(BaseModel\)", text, re.MULTILINE)}
    inner = {"RuntimeSettings"}

    assert {model.__name__ for model in models} == written - inner
    for model in models:
        described = [setting.name for setting in describe_settings(model) if "." not in setting.name]
        assert described == list(model.model_fields)


def test_the_form_of_the_connection_has_a_label_for_every_field() -> None:
    assert list(read_form_labels()) == [setting.name for setting in describe_settings(ConnectionSettings)]


def test_a_mode_is_one_that_is_known(page: str) -> None:
    settings = [setting for model in find_models(page) for setting in describe_settings(model)]

    assert {setting.mode for setting in settings} == {"", *MODES}
    assert [setting.name for setting in settings if setting.meaning.partition(": ")[0] in MODES] == []
