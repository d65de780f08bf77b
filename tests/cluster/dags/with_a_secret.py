# SPDX-License-Identifier: Apache-2.0
"""A job that is given a secret and stays until it is told to end."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator

PROGRAM = """
import hashlib, json, os, pathlib, time
seen = hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest()
pathlib.Path(os.environ["DISPATCH_RESULT_PATH"]).write_text(json.dumps({"seen": seen}))
while not pathlib.Path(os.environ["DISPATCH_STATE_DIR"], "go").exists():
    time.sleep(0.1)
"""

with DAG("with_a_secret", schedule=None):
    DispatchTrainJobOperator(
        task_id="sees_it",
        command=["python3", "-c", PROGRAM],
        secrets={"HF_TOKEN": "hugging-face/token"},
        resources_per_node={"cpu": "100m", "memory": "64Mi"},
        queue="aside",
    )
