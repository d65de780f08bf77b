# SPDX-License-Identifier: Apache-2.0
"""Where the ``dispatch`` command begins, also as ``python -m airflow_provider_dispatch.cli``.

It only starts the application, and says what to install where a library of the command is missing.
"""

from __future__ import annotations

import sys

from airflow_provider_dispatch.cli.exit_codes import ExitCode

LIBRARIES = {"rich", "typer", "yaml"}

try:
    from airflow_provider_dispatch.cli.app import app
except ModuleNotFoundError as error:
    if error.name not in LIBRARIES:
        raise
    sys.stderr.write(
        f"error: the command needs {error.name}, which is not installed: pip install 'airflow-provider-dispatch[cli]'\n"
    )
    sys.exit(ExitCode.NOT_READY)


def main() -> None:
    """Run the command that the process' arguments name; does not return."""
    app(prog_name="dispatch")


if __name__ == "__main__":
    main()
