# SPDX-License-Identifier: Apache-2.0
"""### A gate that another task opens

`start` hands the training to the scheduler behind its *gate*: the scheduler knows the job, and doesn't admit it yet. A
check of the data decides. Only when it has passed, `open` lets the job into its queue; `trained` waits for the end. If
the check fails, the job never ran, and `stop` takes it away all the same.

**Look at** the log of `trained`, and at the result of `stop`: nothing of the job is left.
"""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_provider_dispatch.operators.gate import DispatchOpenGateOperator
from airflow_provider_dispatch.operators.job import DispatchStartJobOperator
from airflow_provider_dispatch.operators.stop import DispatchStopJobOperator
from airflow_provider_dispatch.sensors.job import DispatchJobSensor


@task
def check_data() -> dict[str, int]:
    """Every digit must be there often enough, and every pixel must be a grey that the training knows."""
    import numpy as np  # noqa: PLC0415 - where a DAG file is parsed, it isn't needed
    from sklearn.datasets import load_digits  # noqa: PLC0415 - as above

    images, digits = load_digits(return_X_y=True)
    counts = np.bincount(digits, minlength=10)
    if counts.min() < 150 or images.min() < 0 or images.max() > 16:
        raise ValueError(f"not fit for training: {counts} images of each digit, greys to {images.max()}")
    return {"images": len(digits), "rarest": int(counts.min())}


with DAG("gate_opened_by_another_task", schedule=None, tags=["dispatch"], doc_md=__doc__):
    start = DispatchStartJobOperator(
        task_id="start",
        num_nodes=2,
        command=["python", "training/digits.py"],
        resources_per_node={"cpu": "500m", "memory": "256Mi"},
    )
    open_gate = DispatchOpenGateOperator(task_id="open", job_task_id="start")
    trained = DispatchJobSensor(task_id="trained", job_task_id="start", until={"succeeded"}, deferrable=True)
    # A teardown runs whatever has failed before it, and doesn't hide that from the state of the DAG run.
    stop = DispatchStopJobOperator(task_id="stop", job_task_id="start").as_teardown(setups=start)
    start >> check_data() >> open_gate >> trained >> stop
