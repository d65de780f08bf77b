# SPDX-License-Identifier: Apache-2.0
"""``/healthz``, ``/readyz`` and ``/metrics`` over HTTP, for the kubelet and for Prometheus.

Alive: the event loop answers and no part of the program has ended by itself. Ready: the watches have seen everything
once; a replica without the Lease is ready too, to take over. Never serves anything of a job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from airflow_provider_dispatch.controller.metrics import Metrics

_log = logging.getLogger(__name__)


class HealthServer:
    """Serves on one or two ports while it is entered.

    :param is_ready: asked at each ``/readyz``.
    :param port: of the health endpoints.
    :param metrics_port: equal to *port* for one server.
    """

    def __init__(
        self, metrics: Metrics, is_ready: Callable[[], bool], *, address: str, port: int, metrics_port: int
    ) -> None:
        self._metrics, self._is_ready = metrics, is_ready
        self._address, self._port, self._metrics_port = address, port, metrics_port
        self._runners: list[web.AppRunner] = []

    async def __aenter__(self) -> Self:
        health, metrics = self._build_health(), self._build_metrics()
        if self._port == self._metrics_port:
            await self._serve([*health, *metrics], self._port)
        else:
            await self._serve(health, self._port)
            await self._serve(metrics, self._metrics_port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for runner in self._runners:
            await runner.cleanup()

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where it listens: health first."""
        return tuple(runner.addresses[0][:2] for runner in self._runners)

    async def _serve(self, routes: list[web.RouteDef], port: int) -> None:
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, self._address, port).start()
        _log.info("serving %s on %s", ", ".join(route.path for route in routes), runner.addresses[0][:2])

    def _build_health(self) -> list[web.RouteDef]:
        return [web.get("/healthz", self._answer_alive), web.get("/readyz", self._answer_ready)]

    def _build_metrics(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._answer_metrics)]

    async def _answer_alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _answer_ready(self, _request: web.Request) -> web.Response:
        if self._is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the watches have not seen everything yet\n")

    async def _answer_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), content_type="text/plain", charset="utf-8")
