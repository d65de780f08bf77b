# SPDX-License-Identifier: Apache-2.0
"""No way to fail tells what is in a kubeconfig: not by its words, causes or log lines, nor by how objects look."""

from __future__ import annotations

import base64
import json
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.adapter import build_adapter
from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient, open_client
from airflow_provider_dispatch.adapters.kubeflow.credentials import load_connection
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CONFIG_MAPS, PODS
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.exceptions import DispatchError
from tests.adapters.kubeflow.api_server import ApiServer, Fault, run
from tests.secrecy import draw_secret, find_in_text, hide

TOKEN, PASSWORD, KEY = (draw_secret(label) for label in ("token", "password", "key"))
PLANTED = (TOKEN, PASSWORD, KEY)
PLUGIN = "client.authentication.k8s.io/v1"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[BaseException], str]:
    """All that somebody gets to see of an error: its traceback with every cause, and what was logged so far."""
    caplog.set_level(logging.DEBUG)

    def tell(error: BaseException) -> str:
        return "".join(traceback.format_exception(error)) + repr(error) + caplog.text

    return tell


def write_kubeconfig(path: Path, user: dict[str, Any], server: str = "http://127.0.0.1:1", **cluster: str) -> str:
    config = {
        "current-context": "x",
        "users": [{"name": "u", "user": user}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        f"users: [{{name: u, user: {{token: !{TOKEN}}}}}]",
        f"users: [{{name: u, user: {{token: *{TOKEN}}}}}]",
        f"users:\n- name: u\n  user:\n    token: {TOKEN}\n   password: {PASSWORD}",
        f'{{"users": [{{"name": "u", "user": {{"token": "{TOKEN}"',
        f"token: '{TOKEN}",
        f"users: {TOKEN}\ncurrent-context: x\ncontexts: []\nclusters: []",
        TOKEN,
        f"[{TOKEN}]",
    ],
    ids=hide,
)
def test_a_kubeconfig_that_is_spoilt_is_not_repeated(tmp_path: Path, told, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    with pytest.raises(DispatchError) as caught:
        run(open_client(KubeflowSettings(kubeconfig=str(path))))

    assert find_in_text("error", told(caught.value), PLANTED) == []


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"client-certificate-data": base64.b64encode(KEY.encode()).decode(), "client-key-data": KEY}, {}),
        ({"client-certificate-data": KEY, "client-key-data": KEY}, {}),
        ({"token": TOKEN}, {"certificate-authority-data": base64.b64encode(KEY.encode()).decode()}),
        ({"token": TOKEN}, {"server": f"https://u:{PASSWORD}@127.0.0.1:port"}),
        ({"token": TOKEN}, {"server": f"http://u:{PASSWORD}@127.0.0.1:1"}),
        ({"token": TOKEN}, {"server": f"https://u:{PASSWORD}@127.0.0.1:1", "certificate-authority": "/dev/null"}),
        ({"token": TOKEN}, {"proxy-url": f"http://u:{PASSWORD}@127.0.0.1:1"}),
        ({"token": TOKEN}, {"proxy-url": f"http://u:{PASSWORD}@127.0.0.1:port"}),
        ({"token": {"secret": TOKEN}}, {}),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": TOKEN, "refresh-token": PASSWORD}}}, {}),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": f"a.{TOKEN}.b", "client-secret": PASSWORD}}}, {}),
        ({"exec": {"apiVersion": PLUGIN, "command": sys.executable, "args": ["-c", f"print('{TOKEN}')"]}}, {}),
        ({"exec": {"apiVersion": PLUGIN, "command": "/nowhere", "env": [{"name": "T", "value": TOKEN}]}}, {}),
        ({"tokenFile": "/nowhere", "username": "u", "password": PASSWORD}, {}),
        ({"username": "u", "password": PASSWORD}, {}),
    ],
    ids=hide,
)
def test_credentials_that_do_not_work_are_not_repeated(tmp_path: Path, told, user: dict, cluster: dict) -> None:
    path = write_kubeconfig(tmp_path / "kubeconfig", user, **cluster)

    async def scenario() -> None:
        async with await open_client(KubeflowSettings(kubeconfig=path, request_timeout_seconds=2)) as client:
            await client.list(PODS, "team")

    with pytest.raises(DispatchError) as caught:
        run(scenario())

    assert find_in_text("error", told(caught.value), PLANTED) == []


ECHO = f"GET /api HTTP/1.1\nAuthorization: Bearer {TOKEN}\n"
FAULTS = [
    *(Fault(code, ECHO, times=9) for code in (301, 400, 401, 403, 404, 409, 410, 422, 429, 500, 503)),
    Fault(200, ECHO),
    Fault(0, times=9),
    Fault(hangs=True),
]


async def read(client: KubeClient) -> None:
    await client.list(PODS, "team")


async def write(client: KubeClient) -> None:
    await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, "team")


async def watch(client: KubeClient) -> None:
    async with aclosing(client.watch(PODS, "team")) as events:
        await anext(events)


@pytest.mark.parametrize("call", [read, write, watch])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.status}{' hangs' if fault.hangs else ''}")
def test_no_answer_of_a_server_brings_the_token_to_light(
    tmp_path: Path, told, fault: Fault, call: Callable[[KubeClient], Awaitable[None]]
) -> None:
    """Not even one that sends the request back, as servers for debugging and some proxies do."""

    async def scenario() -> None:
        async def pause(_: float) -> None:
            return None

        async with ApiServer() as server:
            settings = KubeflowSettings(
                kubeconfig=server.write_kubeconfig(tmp_path, TOKEN), request_timeout_seconds=0.5
            )
            async with await open_client(settings, sleep=pause) as client:
                server.faults.append(Fault(**vars(fault)))
                await call(client)

    with pytest.raises(DispatchError) as caught:
        run(scenario())

    text = told(caught.value)
    assert find_in_text("error", text, PLANTED) == []
    assert (ECHO.partition(" ")[0] in text) or fault.status in {0, 200}


def test_nothing_that_holds_credentials_shows_them(tmp_path: Path) -> None:
    async def scenario() -> list[object]:
        async with ApiServer() as server:
            path = server.write_kubeconfig(tmp_path, TOKEN)
            settings = KubeflowSettings(kubeconfig=path)
            connection = await load_connection(settings)
            assert TOKEN in str(await connection.auth_settings())
            async with await open_client(settings) as client:
                await client.list(PODS, "team")
                adapter = build_adapter({"kubeconfig": path})
                transport = vars(client)["_transport"]
                shown = [settings, connection, client, transport, *vars(transport).values(), adapter]
                return [*map(repr, shown), *map(str, shown)]

    assert find_in_text("repr", "\n".join(map(str, run(scenario()))), PLANTED) == []
