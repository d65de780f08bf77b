# SPDX-License-Identifier: Apache-2.0
"""Where the shim begins: ``python -I -S __main__.py CONTROL_FD LOCK_FD``.

Started by the agent, once for each execution. Makes its own folder, and nothing else of the package, importable: the
package's other rooms would cost time before every start of a job, and may need what ``-S`` leaves out.
"""

import sys

PACKAGE = "airflow_provider_dispatch.adapters.local.shim"


def confine_imports(folder: str) -> None:
    """Give *folder* its full name in the package, beneath parents in which nothing can be found."""
    parts = PACKAGE.split(".")
    for depth in range(1, len(parts) + 1):
        module = type(sys)(".".join(parts[:depth]))
        module.__path__ = [folder] if depth == len(parts) else []
        sys.modules[module.__name__] = module


if __name__ == "__main__":
    confine_imports(__file__.rpartition("/")[0] or ".")

    from airflow_provider_dispatch.adapters.local.shim.supervisor import Supervisor

    Supervisor(control_fd=int(sys.argv[1]), lock_fd=int(sys.argv[2])).run()
