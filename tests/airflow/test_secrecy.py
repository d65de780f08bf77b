# SPDX-License-Identifier: Apache-2.0
"""After a whole run no secret is in what Airflow and the store have written: logs, rows, XComs, rendered fields."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from airflow_provider_dispatch.testing.airflow_processes import RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import Run
from tests.airflow.conftest import DAGS_FOLDER, harness_environment
from tests.airflow.scene import Scene
from tests.secrecy import draw_secret, find_in_folder, find_in_text

pytestmark = [pytest.mark.airflow, pytest.mark.matrix]

VALUE, EXTRA, TOKEN, BROKEN_TOKEN = (draw_secret(label) for label in ("value", "extra", "token", "broken"))
PLANTED = (VALUE, EXTRA, TOKEN, BROKEN_TOKEN)
END_OF = {
    "succeeds": "success",
    **dict.fromkeys(("fails", "unfound", "misspelt", "spoilt", "refused"), "failed"),
}
SAID = {
    "fails": "exited with code 3",
    "unfound": "there is no secret hugging-face/nothing",
    "misspelt": "is no field of a Dispatch connection",
    "spoilt": "is not YAML in line",
    "refused": "it isn't allowed",
}


class Echo(BaseHTTPRequestHandler):
    """Refuses everything, and sends back what it was asked."""

    def do_GET(self) -> None:
        """Called for this method, and under the names of the others for those."""
        self.send_error(403, "no", f"you sent {self.headers}")

    def do_POST(self) -> None:
        """To create something."""
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """A client that asks for many things at once leaves when the first is refused."""

    def handle_error(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Echo) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def kubeconfigs(tmp_path_factory: pytest.TempPathFactory, address: str) -> Path:
    folder = tmp_path_factory.mktemp("kubeconfigs")
    config = {
        "current-context": "x",
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    (folder / "good").write_text(json.dumps(config))
    (folder / "spoilt").write_text(f"users: [{{name: u, user: {{token: !{BROKEN_TOKEN}}}}}]")
    return folder


@pytest.fixture(scope="module")
def scene(repository: Path, kubeconfigs: Path) -> Iterator[Scene]:
    """An Airflow of its own: what it leaves is read to the last byte."""
    extras: dict[str, dict[str, str]] = {
        "misspelt": {"qeue": EXTRA},
        "spoilt": {"backend": "kubeflow", "kubeconfig": str(kubeconfigs / "spoilt")},
        "refused": {"backend": "kubeflow", "kubeconfig": str(kubeconfigs / "good")},
    }
    connections = {
        f"AIRFLOW_CONN_{name.upper()}": json.dumps({"conn_type": "dispatch", "extra": extra})
        for name, extra in extras.items()
    }
    with RealAirflow(None, DAGS_FOLDER, env=harness_environment(repository) | connections) as airflow:
        scene = Scene(airflow)
        path = scene.layout.secrets / "hugging-face/token"
        path.parent.mkdir(mode=0o700, parents=True)
        scene.layout.folder.chmod(0o700)
        path.touch(mode=0o600)
        path.write_text(f"{VALUE}\n")
        yield scene


def scan(scene: Scene) -> list[str]:
    return find_in_folder(scene.airflow.home, PLANTED, but=[scene.layout.secrets])


def read_logs(scene: Scene, run: Run) -> dict[str, str]:
    """Task to all that its log files hold: the lines of an exception aren't among what the API calls lines."""
    folder = scene.airflow.home / "task-logs" / f"dag_id={run[0]}" / f"run_id={run[1]}"
    return {
        task_id: "".join(path.read_text() for path in (folder / f"task_id={task_id}").rglob("*.log*"))
        for task_id in END_OF
    }


def test_no_secret_is_left_anywhere(scene: Scene) -> None:
    run = scene.begin("with_secrets")
    scene.wait_until_watched(run, "succeeds")
    scene.wait_until_watched(run, "fails")

    # Now their triggers have rows, and their ranks have the value.
    assert scan(scene) == []
    (scene.control / "go").touch()
    scene.airflow.wait_for_run(run)

    assert {row.task_id: row.state for row in scene.rest.fetch_tasks(run)} == END_OF
    result = scene.read_result(run, "succeeds")
    assert result["result"] == {"seen": hashlib.sha256(VALUE.encode()).hexdigest()}
    logs = read_logs(scene, run)
    assert {task_id: said for task_id, said in SAID.items() if said not in logs[task_id]} == {}
    assert find_in_text("logs", "\n".join(logs.values()), PLANTED) == []
    assert scan(scene) == []
