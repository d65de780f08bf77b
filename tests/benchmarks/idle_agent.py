# SPDX-License-Identifier: Apache-2.0
"""What an agent costs while nothing happens: CPU over a quiet interval, and memory for each job that waits."""

from __future__ import annotations

import time
from pathlib import Path

from tests.benchmarks.crowded_store import QUEUED, count_queued, crowded_store
from tests.benchmarks.figure import Figure
from tests.benchmarks.machine import read_cpu_seconds, read_memory_bytes

QUIET_SECONDS = 20.0
AIM_PERCENT = 0.5


def measure_idle_agent(folder: Path) -> list[Figure]:
    """Percent of a core, and bytes a queued job."""
    with crowded_store(folder / "idle") as store:
        agent = store.world.agent
        cpu, wall = read_cpu_seconds(agent), time.monotonic()
        own = time.process_time()
        time.sleep(QUIET_SECONDS)
        percent = 100 * (read_cpu_seconds(agent) - cpu) / (time.monotonic() - wall)
        own_percent = 100 * (time.process_time() - own) / QUIET_SECONDS
        queued, memory = count_queued(store.world), read_memory_bytes(agent)
    says = f"an agent with one job held, one running and {queued} queued, over {QUIET_SECONDS:g} s without a change"
    return [
        Figure(
            name="agent.idle_cpu",
            says=f"CPU of {says}",
            value=percent,
            unit="% of a core",
            peer="this process, asleep meanwhile",
            peer_value=own_percent,
            aim=f"at most {AIM_PERCENT:g} %",
            is_met=percent <= AIM_PERCENT and queued == QUEUED,
            context={"cpu_seconds_of_the_agent_before": round(cpu, 3)},
        ),
        Figure(
            name="agent.memory_per_queued_job",
            says=f"growth of the private memory of the agent by {QUEUED} queued jobs, for each of them",
            value=(store.memory_after - store.memory_before) / QUEUED,
            unit="bytes",
            context={
                "agent_without_queued_jobs_bytes": store.memory_before,
                "agent_after_the_quiet_interval_bytes": memory,
            },
        ),
    ]
