# SPDX-License-Identifier: Apache-2.0
"""### Roles that start in order

A job may have several roles with an order between them. All ranks get their room together; then their processes start
in that order, and again after every restart and every release.

* `leader_first`, as for Ray, Spark or Flux: the workers start when the leader can be reached.
* `workers_first`, as for MPI: the launcher starts when all workers run. The job succeeds with the launcher alone;
  whatever workers are left is ended then.

**Look at** the logs: `admitted, 0 of 3 ranks ready, waiting for leader`, and in the other for `worker`.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator

COMMAND = ["python", "training/digits.py"]
ROOM = {"cpu": "250m", "memory": "256Mi"}
# Whoever starts first must be there to be found: the check knocks at the port where rank 0 awaits the others.
LISTENS = "import os, socket; socket.create_connection(('127.0.0.1', int(os.environ['MASTER_PORT'])), 1).close()"

with DAG("leader_and_workers", schedule=None, tags=["dispatch"], doc_md=__doc__):
    leader_first = DispatchTrainJobOperator(
        task_id="leader_first",
        roles=[
            {
                "name": "leader",
                "command": COMMAND,
                "resources": ROOM,
                "readiness": {"command": ["python", "-I", "-S", "-c", LISTENS]},
            },
            {
                "name": "worker",
                "nodes": 2,
                "command": COMMAND,
                "resources": ROOM,
                "after": [{"role": "leader", "when": "ready"}],
            },
        ],
    )
    workers_first = DispatchTrainJobOperator(
        task_id="workers_first",
        roles=[
            {"name": "worker", "nodes": 2, "command": COMMAND, "resources": ROOM},
            {
                "name": "launcher",
                "command": COMMAND,
                "resources": ROOM,
                "after": [{"role": "worker", "when": "ready"}],
            },
        ],
        leading_role="launcher",
        success_roles=["launcher"],
    )
    leader_first >> workers_first
