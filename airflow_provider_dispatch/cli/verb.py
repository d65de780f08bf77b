# SPDX-License-Identifier: Apache-2.0
"""Makes commands out of verbs: coroutines that take a session, groups of options, and options of their own.

A group is a dataclass whose fields are written as Typer parameters; the same group serves many verbs. Every verb gets
the options that say where and in which form, and ends with an exit status: here is the one border where an error
becomes a line and a number.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Concatenate, ParamSpec, get_type_hints

from typer import Exit, Option, Typer

from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.cli.exit_codes import ExitCode, derive_exit_code
from airflow_provider_dispatch.cli.screen import OutputForm, Screen
from airflow_provider_dispatch.cli.session import Session
from airflow_provider_dispatch.cli.settings import SETTINGS_VARIABLE, load_settings
from airflow_provider_dispatch.cli.values import read_optional_duration
from airflow_provider_dispatch.exceptions import DispatchError

P = ParamSpec("P")
Verb = Callable[Concatenate[Session, P], Coroutine[object, object, ExitCode | None]]
WHERE_PANEL = "Where and in which form"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of every verb."""

    conn_id: Annotated[
        str | None, Option("--conn-id", "-c", help="An Airflow connection.", rich_help_panel=WHERE_PANEL)
    ] = None
    settings: Annotated[
        Path | None,
        Option(
            "--settings",
            "-s",
            help=f"A YAML file that names the backend; ${SETTINGS_VARIABLE} does, too. Without it and without a "
            "connection: the local store below $AIRFLOW_HOME.",
            rich_help_panel=WHERE_PANEL,
        ),
    ] = None
    output: Annotated[OutputForm, Option("--output", "-o", help="Form of the answer.", rich_help_panel=WHERE_PANEL)] = (
        OutputForm.TABLE
    )
    call_timeout: Annotated[
        str | None,
        Option(help="How long one call to the backend may take: 90s, 5m.", rich_help_panel=WHERE_PANEL),
    ] = None


def add_verb(app: Typer, verb: Verb[...], *, name: str | None = None) -> None:
    """Make a command of a coroutine; its docstring is the help."""
    groups = {"call": CallOptions} | _find_groups(verb)
    hints = get_type_hints(verb, include_extras=True)
    _, *own = inspect.signature(verb).parameters.values()

    @functools.wraps(verb)
    def command(**given: object) -> None:
        arguments = _fold(groups, given)
        call = arguments.pop("call")
        assert isinstance(call, CallOptions)
        code = run(call, lambda session: verb(session, **arguments))
        if code is not ExitCode.OK:
            raise Exit(code)

    parameters = [*_unfold(own, hints, groups), *_list_fields(CallOptions)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name or verb.__name__)(command)


def run(call: CallOptions, verb: Callable[[Session], Coroutine[object, object, ExitCode | None]]) -> ExitCode:
    """Run a verb to its end and say how it ended."""
    screen = Screen(call.output)
    running: list[Session] = []

    async def play() -> ExitCode | None:
        session = _open_session(call, screen)
        running.append(session)
        try:
            return await verb(session)
        finally:
            await session.adapter.close()

    try:
        return asyncio.run(play()) or ExitCode.OK
    except DispatchError as error:
        screen.tell(f"error: {error}")
        return derive_exit_code(error)
    except KeyboardInterrupt:
        screen.tell(f"interrupted: {running[0].if_interrupted if running else 'nothing was begun'}")
        return ExitCode.INTERRUPTED


def _open_session(call: CallOptions, screen: Screen) -> Session:
    # A terminal that can't show a letter shows its number instead of ending the command.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    timeout = read_optional_duration("--call-timeout", call.call_timeout)
    settings = load_settings(call.conn_id, call.settings)
    if timeout is not None:
        settings = dataclasses.replace(settings, call_timeout=timeout)
    return Session(settings, build_adapter(settings.backend, settings.fields), screen)


def _find_groups(verb: Verb[...]) -> dict[str, type]:
    hints = {name: hint for name, hint in get_type_hints(verb).items() if isinstance(hint, type)}
    return {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint) and hint is not Session}


def _unfold(
    own: list[inspect.Parameter], hints: Mapping[str, object], groups: Mapping[str, type]
) -> Iterator[inspect.Parameter]:
    """One parameter for each field of a group, and each parameter of the verb's own."""
    for parameter in own:
        if parameter.name in groups:
            yield from _list_fields(groups[parameter.name])
        else:
            yield parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)


def _list_fields(group: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )


def _fold(groups: Mapping[str, type], given: dict[str, object]) -> dict[str, object]:
    """What Typer has read, back in the shape that the verb takes."""
    rest = dict(given)
    folded = {}
    for name, group in groups.items():
        folded[name] = group(**{field.name: rest.pop(field.name) for field in dataclasses.fields(group)})
    return rest | folded
