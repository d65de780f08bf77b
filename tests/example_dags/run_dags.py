# SPDX-License-Identifier: Apache-2.0
"""Runs DAG files with ``dag.test()``, one after another, and prints what became of each: a line of JSON between others.

All in one process, because Airflow takes longer to load than most of them to run.
"""

from __future__ import annotations

import json
import sys

from airflow.dag_processing.dagbag import DagBag

MARK = "became: "


def main(paths: list[str]) -> None:
    for path in paths:
        bag = DagBag(path)
        assert not bag.import_errors, bag.import_errors
        (dag,) = bag.dags.values()
        run = dag.test()
        tasks = {instance.task_id: [instance.state, instance.try_number] for instance in run.get_task_instances()}
        became = {"dag_id": run.dag_id, "run_id": run.run_id, "state": run.state, "tasks": tasks}
        print(MARK + json.dumps(became), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
