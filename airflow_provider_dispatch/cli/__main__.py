# SPDX-License-Identifier: Apache-2.0
"""Where the ``dispatch`` command begins, also as ``python -m airflow_provider_dispatch.cli``.

It only starts the application, and says what to install where a library of the command is missing.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from airflow_provider_dispatch.cli.exit_codes import ExitCode

# Until the application stands, nothing has begun that Ctrl-C could leave half done: it ends the process without a word.
# A shell's background job is told to ignore it, and goes on to.
IS_CTRL_C_HEARD = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if IS_CTRL_C_HEARD:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

LIBRARIES = {"rich", "typer", "yaml"}

try:
    from airflow_provider_dispatch.cli.app import app
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in LIBRARIES:
        raise
    sys.stderr.write(
        f"error: the command needs {missing}, which is not installed: pip install 'airflow-provider-dispatch[cli]'\n"
    )
    sys.exit(ExitCode.NOT_READY)


def main() -> None:
    """Run the command that the process' arguments name; does not return."""
    if IS_CTRL_C_HEARD:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("stdout", "stderr"):
        # Closed by the caller (`>&-`), who wants to see nothing: the exit status says it all.
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - as long as the process
    app(prog_name="dispatch")


if __name__ == "__main__":
    main()
