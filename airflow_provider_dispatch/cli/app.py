# SPDX-License-Identifier: Apache-2.0
"""The ``dispatch`` application: which verbs and which groups it has. Nothing here does any work.

A verb is a line in :data:`VERBS`. A group of further commands, for one kind of backend say, is an application of its
own and a line in :data:`GROUPS`.
"""

from __future__ import annotations

from typing import Annotated

from typer import Exit, Option, Typer

import airflow_provider_dispatch
from airflow_provider_dispatch.cli import changing, collecting, fencing, queues, reading, setting_up, starting, watching
from airflow_provider_dispatch.cli.verb import Verb, add_verb

VERBS: dict[str, Verb[...]] = {
    "preflight": reading.preflight,
    "capabilities": reading.capabilities,
    "start": starting.start,
    "open": changing.open_gate,
    "inspect": reading.inspect,
    "watch": watching.watch,
    "logs": watching.logs,
    "hold": changing.hold,
    "release": changing.release,
    "stop": changing.stop,
    "find": reading.find,
    "list": reading.list_jobs,
    "events": reading.events,
    "adopt": changing.adopt,
    "explain": reading.explain,
    "gc": collecting.gc,
    "setup": setting_up.setup,
}
GROUPS: dict[str, Typer] = {"queue": queues.build_group(), "fence": fencing.build_group()}


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - called by Typer with the option's value alone
    """Print the version and end."""
    if wanted:
        print(airflow_provider_dispatch.__version__)  # noqa: T201 - the answer
        raise Exit


def build_app() -> Typer:
    """The application with all that is listed above."""
    made = Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @made.callback()
    def dispatch(
        *,
        version: Annotated[
            bool, Option("--version", help="Show the version and end.", is_eager=True, callback=_show_version)
        ] = False,
    ) -> None:
        """Start, hold, release and watch multi-node training jobs by hand, wherever they run."""
        del version

    for name, verb in VERBS.items():
        add_verb(made, verb, name=name)
    for name, group in GROUPS.items():
        made.add_typer(group, name=name)
    return made


app = build_app()
