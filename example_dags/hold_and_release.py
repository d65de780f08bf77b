# SPDX-License-Identifier: Apache-2.0
"""### Hold and release around maintenance

A training is held while it runs: its processes save a checkpoint and end, and its room is free for `maintenance`, a
self-test of the nodes. Then the hold is lifted, and the training goes on where it was, as a new *execution* under a
higher epoch. All the time `train` is one deferred task on its first try.

**Look at** the log of `train` (`held by …`, `resumed from checkpoint-e1000001-…`), at its result (`"epoch": 1000002`,
`"executions": 2`) and at the log of `maintenance`, which on a full queue waits until the training is held. For a queue
that has room for one of the two see `queues.toml` beside this file.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.hold import DispatchHoldJobOperator, DispatchReleaseJobOperator
from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator
from airflow_provider_dispatch.operators.stop import DispatchStopJobOperator
from airflow_provider_dispatch.sensors.hold import DispatchHoldSensor
from airflow_provider_dispatch.sensors.job import DispatchJobSensor

# A rank is ready when there is a checkpoint: from then on a hold costs next to nothing.
HAS_CHECKPOINT = (
    "import os, sys; names = os.listdir(os.environ['DISPATCH_STATE_DIR']);"
    " sys.exit(not any(name.startswith('checkpoint-') for name in names))"
)
ROOM = {"cpu": "500m", "memory": "256Mi"}

with DAG("hold_and_release", schedule=None, tags=["dispatch"], doc_md=__doc__):
    train = DispatchTrainJobOperator(
        task_id="train",
        num_nodes=2,
        # Slow enough to be held before it's done; once it has been, it goes on at full speed.
        command=["python", "training/digits.py", "--step-delay=0.4", "--checkpoint-every=5"],
        readiness={"command": ["python", "-I", "-S", "-c", HAS_CHECKPOINT]},
        resources_per_node=ROOM,
        queue="research",
        hold_timeout=timedelta(hours=8),
    )

    # These run beside `train`. They name its job by its task, and may begin before it has.
    trains = DispatchJobSensor(task_id="trains", job_task_id="train", until={"running"}, deferrable=True)
    hold = DispatchHoldJobOperator(task_id="hold", job_task_id="train", reason="maintenance of the nodes", wait=False)
    wait_held = DispatchHoldSensor(task_id="wait_held", job_task_id="train", until="held", deferrable=True)
    maintenance = DispatchTrainJobOperator(
        task_id="maintenance",
        num_nodes=2,
        command=["python", "maintenance/self_test.py"],
        resources_per_node=ROOM,
        queue="research",
    )
    release = DispatchReleaseJobOperator(task_id="release", job_task_id="train")
    trains >> [hold, maintenance]
    hold >> wait_held
    [wait_held, maintenance] >> release

    # The training has ended by then: this removes what is left of it, and proves that nothing of it is alive.
    stop = DispatchStopJobOperator(task_id="stop", job_task_id="train", reason="all done")
    [train, release] >> stop
