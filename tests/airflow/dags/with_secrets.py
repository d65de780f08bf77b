# SPDX-License-Identifier: Apache-2.0
"""Jobs that are given a secret and end in every way, and tasks whose connection holds one and is no good."""

from __future__ import annotations

import sys

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator
from tests.airflow.programs import CONTROL

PROGRAM = """
import hashlib, json, os, pathlib, sys, time
seen = hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest()
pathlib.Path(os.environ["DISPATCH_RESULT_PATH"]).write_text(json.dumps({"seen": seen}))
while not pathlib.Path(os.environ["CONTROL"], "go").exists():
    time.sleep(0.05)
sys.exit(int(sys.argv[1]))
"""
ENV = {"CONTROL": str(CONTROL)}
TOKEN = {"HF_TOKEN": "hugging-face/token"}


def program(code: int) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", PROGRAM, str(code)]


with DAG("with_secrets", schedule=None):
    DispatchTrainJobOperator(task_id="succeeds", command=program(0), env=ENV, secrets=TOKEN)
    DispatchTrainJobOperator(task_id="fails", command=program(3), env=ENV, secrets=TOKEN)
    DispatchTrainJobOperator(
        task_id="unfound", command=program(0), env=ENV, secrets={"HF_TOKEN": "hugging-face/nothing"}
    )
    for conn_id in ("misspelt", "spoilt", "refused"):
        DispatchTrainJobOperator(
            task_id=conn_id, command=program(0), secrets=TOKEN, runtime="plain", dispatch_conn_id=conn_id
        )
