# SPDX-License-Identifier: Apache-2.0
"""### A first job

Two processes teach a model together to read handwritten digits. Both run or none does. The task is deferred while the
job waits and trains, so it occupies no worker.

**Look at** the log of `train`: why the job waits, then what its rank 0 prints. Its XCom has the job's result, with the
accuracy.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator

with DAG("first_job", schedule=None, tags=["dispatch"], doc_md=__doc__):
    DispatchTrainJobOperator(
        task_id="train",
        num_nodes=2,
        # Found in this file's folder where the backend shares it, else in the image.
        command=["python", "training/digits.py"],
        resources_per_node={"cpu": "500m", "memory": "256Mi"},
        queue_timeout=timedelta(hours=1),
        run_timeout=timedelta(minutes=10),
    )
