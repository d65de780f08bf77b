# SPDX-License-Identifier: Apache-2.0
"""Where the controller begins: ``python -m airflow_provider_dispatch.controller --config FILE``.

Reads flags, opens the log on standard error and runs one replica until TERM or INT. Exit status 2: wrong settings; 1:
a part of it failed; 0: stopped as asked.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence

from airflow_provider_dispatch.controller.config import ControllerConfig, parse_config
from airflow_provider_dispatch.exceptions import DispatchError, NotInstalledError, SpecError

INSTALL = "dispatch-admission needs prometheus-client: pip install 'airflow-provider-dispatch[controller]'"
_log = logging.getLogger("dispatch-admission")


def main(arguments: Sequence[str]) -> int:
    """Be a replica; the exit status."""
    try:
        config = parse_config(arguments)
    except SpecError as error:
        print(f"dispatch-admission: {error}", file=sys.stderr)  # noqa: T201 - there is no log yet
        return 2
    _open_log(config.log_level)
    try:
        asyncio.run(_serve(config))
    except SpecError as error:
        _log.error("%s", error)
        return 2
    except (DispatchError, OSError) as error:
        _log.error("can't begin: %s", error)
        return 1
    except ExceptionGroup:
        _log.exception("a part of the controller has failed")
        return 1
    return 0


async def _serve(config: ControllerConfig) -> None:
    serve = _load()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _log.info("%s begins", config.identity)
    await serve(config, stop)
    _log.info("%s has stopped", config.identity)


def _load() -> Callable[[ControllerConfig, asyncio.Event], Coroutine[None, None, None]]:
    try:
        from airflow_provider_dispatch.controller.running import (  # noqa: PLC0415 - flags are explained without it too
            serve,
        )
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise NotInstalledError(INSTALL) from error
    return serve


def _open_log(level: str) -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=level, format="%(asctime)sZ %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
