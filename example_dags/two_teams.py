# SPDX-License-Identifier: Apache-2.0
"""### Two teams share a quota

Both teams submit to one queue that has room for one of their jobs at a time (see `queues.toml` beside this file; in a
queue with more room both run at once). Team A trains at low priority. Team B comes later with an urgent job: A's is
*preempted*. It saves, ends, waits in the queue, and goes on by itself when B's is done. That isn't a failure: no retry
of `team_a` is spent, and nobody has to start it again.

**Look at** the log of `team_a` (queued again, and why), and at both results: A's says `"executions": 2` and from which
checkpoint the second went on, B's says 1.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator
from airflow_provider_dispatch.sensors.job import DispatchJobSensor

ROOM = {"cpu": "500m", "memory": "256Mi"}

with DAG("two_teams", schedule=None, tags=["dispatch"], doc_md=__doc__):
    team_a = DispatchTrainJobOperator(
        task_id="team_a",
        num_nodes=2,
        # Slow enough to be still there when B comes; once it has been preempted, it goes on at full speed.
        command=["python", "training/digits.py", "--step-delay=0.4", "--checkpoint-every=5"],
        resources_per_node=ROOM,
        queue="research",
        priority="low",
        labels={"team": "a"},
    )
    a_runs = DispatchJobSensor(task_id="a_runs", job_task_id="team_a", until={"running"}, deferrable=True)
    team_b = DispatchTrainJobOperator(
        task_id="team_b",
        num_nodes=2,
        command=["python", "training/digits.py", "--steps=200"],
        resources_per_node=ROOM,
        queue="research",
        priority="high",
        labels={"team": "b"},
    )
    a_runs >> team_b
