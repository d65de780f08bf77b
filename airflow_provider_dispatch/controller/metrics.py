# SPDX-License-Identifier: Apache-2.0
"""The controller's figures for Prometheus. Every part counts here; the health server shows them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

QUICK_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
LONG_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)


class Metrics:
    """One set of figures; tests make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.decisions = Counter(
            "dispatch_decisions_total", "Decisions carried out, by kind", ["kind"], registry=self.registry
        )
        self.conflicts = Counter(
            "dispatch_conflicts_total",
            "Writes refused because somebody wrote first; judged again",
            registry=self.registry,
        )
        self.failures = Counter(
            "dispatch_failures_total", "Looks at a job that failed and are repeated", ["error"], registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            "dispatch_reconcile_seconds", "One look at a job", buckets=QUICK_SECONDS, registry=self.registry
        )
        self.lift_seconds = Histogram(
            "dispatch_lift_seconds",
            "From a pod's creation to the lift of its fence",
            buckets=LONG_SECONDS,
            registry=self.registry,
        )
        self.queue_depth = Gauge("dispatch_queue_depth", "Jobs that are due to be looked at", registry=self.registry)
        self.jobs = Gauge("dispatch_jobs", "Submissions that are looked after", registry=self.registry)
        self.lease_held = Gauge("dispatch_lease_held", "1 while this replica acts", registry=self.registry)
        self.watch_restarts = Counter(
            "dispatch_watch_restarts_total", "Watches begun anew with a list", ["resource"], registry=self.registry
        )

    def render(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)
