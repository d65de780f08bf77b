# SPDX-License-Identifier: Apache-2.0
"""### A policy for what goes wrong

The training needs more memory than it asks for, and is ended for it. Its recovery policy knows what to do: *out of
memory* means to submit it again with four times as much, once; a *lost node* means to submit it again as it was, up to
three times. Both are a new *submission* of the same job under a higher epoch, inside the same task, and no retry of
the task is spent. For any other cause the task fails at once, and says what happened and what to do.

**Look at** the log of `train` (`The recovery policy makes submission 2`) and at its result: `"epoch": 2000001`, which
is the first execution of the second submission.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator

with DAG("recovery_policy", schedule=None, tags=["dispatch"], doc_md=__doc__):
    DispatchTrainJobOperator(
        task_id="train",
        # A batch of 100,000 images takes some 50 MB, and its gradient as much again for a moment.
        command=["python", "training/digits.py", "--steps=30", "--batch-size=100000", "--checkpoint-every=10"],
        resources_per_node={"cpu": "500m", "memory": "64Mi"},
        recovery=[
            {"causes": ["out_of_memory"], "action": "resubmit", "limit": 1, "scale": {"memory": 4}},
            {"causes": ["node_lost", "evicted"], "action": "resubmit", "limit": 3, "back_off": 1},
        ],
    )
