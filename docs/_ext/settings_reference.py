# SPDX-License-Identifier: Apache-2.0
"""The directive ``settings``: a table of a settings model, with a row for each field.

    ```{settings} airflow_provider_dispatch.adapters.local.settings.LocalSettings
    ```

What a field takes and its default come from the model's schema, what it means from the model's docstring. So the page
can't say anything else than the code, and a field that nobody has described ends the build. With the option ``form``
the field's label in the form of an Airflow connection is shown, too.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from airflow_provider_dispatch.get_provider_info import get_provider_info

MODES = ("local", "kubeflow", "Kueue mode", "plain mode")
"""A meaning that begins with one of these and a colon is of a setting that counts there alone."""
WORDS = {"string": "text", "number": "a number", "integer": "a whole number", "boolean": "`true` or `false`"}
_PARAMETER = re.compile(r"^:param (?P<name>\w+): (?P<text>.*(?:\n    .*)*)", re.MULTILINE)

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """A row.

    :param takes: what may be written.
    :param default: as it is written in YAML; empty where the setting must be given.
    :param mode: where alone it counts; empty means everywhere.
    """

    name: str
    meaning: str
    takes: str
    default: str
    mode: str = ""


def describe_settings(model: type[BaseModel]) -> list[Setting]:
    """All settings of a model in their order; those of a model inside it under dotted names.

    :raises LookupError: the docstring doesn't say what a field means.
    """
    schema = model.model_json_schema()
    return list(_describe_fields(model, schema, schema, ""))


def build_table(settings: Iterable[Setting], labels: Mapping[str, str] | None = None) -> list[str]:
    """The lines of a table in Markdown; a column that would be empty is left out.

    :param labels: of fields in the form of a connection.
    """
    columns = {
        "setting": lambda one: f"`{one.name}`",
        "in the form": lambda one: (labels or {}).get(one.name, ""),
        "counts": lambda one: one.mode,
        "means": lambda one: one.meaning,
        "takes": lambda one: one.takes,
        "default": lambda one: one.default,
    }
    rows = [{title: cell(one) for title, cell in columns.items()} for one in settings]
    titles = [title for title in columns if any(row[title] for row in rows)]
    lines = [titles, ["---"] * len(titles), *([row[title].replace("|", "\\|") for title in titles] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def read_form_labels() -> dict[str, str]:
    """Field to label, as Airflow shows them."""
    info: Any = get_provider_info()
    (connection,) = info["connection-types"]
    return {name: field["label"] for name, field in connection["conn-fields"].items()}


def _describe_fields(model: type[BaseModel], schema: Schema, whole: Schema, prefix: str) -> Iterator[Setting]:
    meanings = _read_meanings(model)
    for name, field in schema["properties"].items():
        if name not in meanings:
            raise LookupError(f"the docstring of {model.__name__} does not say what {name} means")
        kinds = _list_kinds(field)
        takes = " or ".join(map(_describe_kind, kinds))
        mode, meaning = _split_mode(meanings[name])
        yield Setting(f"{prefix}{name}", meaning, takes, _show_default(field), mode)
        for inner in (kind["$ref"].rpartition("/")[2] for kind in kinds if "$ref" in kind):
            its_model = getattr(importlib.import_module(model.__module__), inner)
            yield from _describe_fields(its_model, whole["$defs"][inner], whole, f"{prefix}{name}.")


def _list_kinds(field: Schema) -> list[Schema]:
    """What a value may be, but for nothing at all, which the default tells."""
    return [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]


def _describe_kind(kind: Schema) -> str:
    if "$ref" in kind:
        return "the settings below"
    if "enum" in kind:
        return " or ".join(f"`{choice}`" for choice in kind["enum"])
    if kind.get("type") == "array":
        return f"a list; each: {_describe_kind(kind['items'])}"
    if kind.get("format") == "path":
        return "a path"
    limits = [
        f"above {kind['exclusiveMinimum']}" if "exclusiveMinimum" in kind else "",
        f"from {kind['minimum']}" if "minimum" in kind else "",
        f"up to {kind['maximum']}" if "maximum" in kind else "",
        f"of {kind.get('minLength', 0)} to {kind['maxLength']} characters" if "maxLength" in kind else "",
        f"like `{kind['pattern']}`" if "pattern" in kind else "",
    ]
    return " ".join([WORDS[kind["type"]], *filter(None, limits)])


def _show_default(field: Schema) -> str:
    if "default" not in field:
        return ""
    match field["default"]:
        case None | []:
            return "none"
        case float(number):
            return f"`{number:g}`"
        case str(text):
            return f"`{text}`"
        case other:
            return f"`{json.dumps(other)}`"


def _read_meanings(model: type[BaseModel]) -> dict[str, str]:
    found = _PARAMETER.finditer(inspect.getdoc(model) or "")
    # Programs write None, people who fill in a file nothing.
    texts = {match["name"]: re.sub(r"\bNone\b", "none", match["text"]) for match in found}
    return {name: " ".join(text.split()).replace("``", "`").rstrip(".") for name, text in texts.items()}


def _split_mode(meaning: str) -> tuple[str, str]:
    mode, colon, rest = meaning.partition(": ")
    return (mode, rest) if colon and mode in MODES else ("", meaning)


class SettingsDirective(SphinxDirective):
    """Puts the table into the page."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"form": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        path, _, name = self.arguments[0].rpartition(".")
        try:
            settings = describe_settings(getattr(importlib.import_module(path), name))
        except (ImportError, AttributeError, LookupError) as error:
            raise self.error(str(error)) from error
        labels = read_form_labels() if "form" in self.options else None
        return self.parse_text_to_nodes("\n".join(build_table(settings, labels)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    # Now, because autodoc imports later on with TYPE_CHECKING set, and pydantic can't build an open model then.
    importlib.import_module("airflow_provider_dispatch.cli.settings")
    app.add_directive("settings", SettingsDirective)
    return {"parallel_read_safe": True}
