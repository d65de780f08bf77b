# SPDX-License-Identifier: Apache-2.0
"""The group `queue`: makes, shows and removes queues of a cluster, each guarded by our AdmissionCheck alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from airflow_provider_dispatch.adapters.kubeflow.setup.queue_terms import (
    EFFECTS,
    FlavorTerms,
    Preemption,
    QueueTerms,
    Reclaim,
    Toleration,
)
from airflow_provider_dispatch.cli.cluster import ClusterOptions, tell_result, view_results
from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.cli.screen import View
from airflow_provider_dispatch.cli.session import Session
from airflow_provider_dispatch.cli.values import read_pairs
from airflow_provider_dispatch.cli.verb import add_verb
from airflow_provider_dispatch.exceptions import SpecError

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.kubeflow.setup.queue_keeping import QueueState

QUOTA_PANEL = "How much, on which nodes"
SHARE_PANEL = "Among other queues and jobs"
Namespace = Annotated[
    str | None, Option("--namespace", "-n", help="Default: that of the connection or settings, else default.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOptions:
    """What a queue has."""

    cpu: Annotated[str | None, Option(help="8, 500m.", rich_help_panel=QUOTA_PANEL)] = None
    memory: Annotated[str | None, Option(help="64Gi.", rich_help_panel=QUOTA_PANEL)] = None
    resource: Annotated[
        list[str] | None, Option(help="nvidia.com/gpu=8; may be given again.", rich_help_panel=QUOTA_PANEL)
    ] = None
    flavor: Annotated[
        list[str] | None,
        Option(
            help="Several kinds of nodes, tried in this order: a100:cpu=96,memory=1Ti,nvidia.com/gpu=8. "
            "One that is there already is used. Instead of --cpu, --memory and --resource.",
            rich_help_panel=QUOTA_PANEL,
        ),
    ] = None
    node_label: Annotated[
        list[str] | None,
        Option(
            help="Only nodes with it: name=value, or for one of several flavors a100@name=value.",
            rich_help_panel=QUOTA_PANEL,
        ),
    ] = None
    toleration: Annotated[
        list[str] | None,
        Option(
            help="Of a taint of these nodes: name:NoSchedule, name=value:NoExecute, a100@name.",
            rich_help_panel=QUOTA_PANEL,
        ),
    ] = None

    def build_flavors(self, own: str) -> tuple[FlavorTerms, ...]:
        """What they say.

        :param own: name of the flavor that is made where none is named.
        :raises SpecError: a wrong amount, or one that belongs to no flavor.
        """
        amounts = {name: given for name, given in (("cpu", self.cpu), ("memory", self.memory)) if given is not None}
        amounts |= read_pairs("--resource", self.resource or ())
        if self.flavor and amounts:
            raise SpecError("--flavor", "says how much by itself: leave out --cpu, --memory and --resource")
        quotas = dict(map(_read_flavor, self.flavor)) if self.flavor else {own: amounts}
        if self.flavor and len(quotas) < len(self.flavor):
            raise SpecError("--flavor", "is named twice", ", ".join(self.flavor))
        labels = _sort_by_flavor("--node-label", self.node_label or (), quotas)
        tolerations = _sort_by_flavor("--toleration", self.toleration or (), quotas)
        return tuple(
            FlavorTerms(
                name,
                given,
                read_pairs("--node-label", labels.get(name, ())),
                tuple(map(_read_toleration, tolerations.get(name, ()))),
            )
            for name, given in quotas.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOptions:
    """How a queue stands to others."""

    cohort: Annotated[
        str | None, Option(help="Queues that lend each other what they don't use.", rich_help_panel=SHARE_PANEL)
    ] = None
    weight: Annotated[
        float | None, Option(help="Share of the cohort, where Kueue shares fairly.", rich_help_panel=SHARE_PANEL)
    ] = None
    preemption: Annotated[
        Preemption, Option(help="Whose room a job may take within the queue.", rich_help_panel=SHARE_PANEL)
    ] = Preemption.LOWER
    reclaim: Annotated[Reclaim, Option(help="From whom lent room is taken back.", rich_help_panel=SHARE_PANEL)] = (
        Reclaim.NEVER
    )
    strict: Annotated[
        bool, Option("--strict", help="Nobody passes a job that doesn't fit.", rich_help_panel=SHARE_PANEL)
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """Where a queue is made."""

    namespace: Namespace = None
    cluster_queue: Annotated[str | None, Option(help="Default: NAMESPACE-NAME.")] = None


async def create(
    session: Session,
    place: PlaceOptions,
    quota: QuotaOptions,
    share: ShareOptions,
    cluster: ClusterOptions,
    *,
    name: Annotated[str, Argument(metavar="NAME", help="Of the LocalQueue, which jobs name.")],
) -> None:
    """Make a queue that is guarded by our AdmissionCheck, or change its quotas: the same call may be made again."""
    keeper = cluster.open_keeper(session, namespace=place.namespace)
    settings = keeper.settings
    terms = QueueTerms(
        name,
        settings.namespace,
        quota.build_flavors(place.cluster_queue or f"{settings.namespace}-{name}"),
        settings.admission_check,
        place.cluster_queue or "",
        share.cohort or "",
        share.weight,
        share.preemption,
        share.reclaim,
        share.strict,
        cluster.instance,
    )
    session.if_interrupted = "what was written stays; the same call again completes it"
    async with keeper:
        done = await keeper.create_queue(terms, tell=partial(tell_result, session))
    settings_file = f"backend: kubeflow, namespace: {settings.namespace}, queue: {name}"
    session.screen.show(view_results(done, (f"next: dispatch preflight, with settings that say {settings_file}",)))


async def show(
    session: Session,
    cluster: ClusterOptions,
    *,
    name: Annotated[str | None, Argument(metavar="NAME", help="Default: all of the namespace.")] = None,
    namespace: Namespace = None,
) -> ExitCode | None:
    """Quotas, use, and whether our check guards it. Exit 1: jobs of it can't be started safely."""
    async with cluster.open_keeper(session, namespace=namespace) as keeper:
        found = await keeper.fetch_queues(name)
    session.screen.show(_view_queues(found))
    return ExitCode.FAILED if any(one.problem for one in found) else None


async def delete(
    session: Session,
    cluster: ClusterOptions,
    *,
    name: Annotated[str, Argument(metavar="NAME", help="Of the LocalQueue.")],
    namespace: Namespace = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Also while jobs are in it.")] = False,
) -> ExitCode | None:
    """Remove a queue with all that was made for it. Exit 1: something is left for now."""
    session.if_interrupted = "what was removed stays removed; the same call again completes it"
    async with cluster.open_keeper(session, namespace=namespace) as keeper:
        done = await keeper.delete_queue(
            name, although_used=yes, deadline=session.build_deadline(), tell=partial(tell_result, session)
        )
    session.screen.show(view_results(done))
    return ExitCode.FAILED if any(one.outcome == "left" for one in done) else None


def build_group() -> Typer:
    """The group."""
    made = Typer(no_args_is_help=True, help="Make, show and remove the queues of a cluster.")
    for verb in (create, show, delete):
        add_verb(made, verb)
    return made


def _read_flavor(text: str) -> tuple[str, dict[str, str]]:
    name, colon, amounts = text.partition(":")
    if not colon or not name:
        raise SpecError("--flavor", "must be written name:cpu=96,memory=1Ti", text)
    return name, read_pairs("--flavor", amounts.split(","))


def _sort_by_flavor(option: str, texts: Iterable[str], flavors: Mapping[str, object]) -> dict[str, list[str]]:
    """What is said of each flavor; without a name before ``@`` it is said of the only one there is."""
    found: dict[str, list[str]] = {}
    for text in texts:
        named, at, rest = text.rpartition("@")
        if at and named not in flavors:
            raise SpecError(option, f"is of none of the flavors {', '.join(flavors)}", text)
        if not at and len(flavors) > 1:
            raise SpecError(option, "say of which flavor it is: flavor@name=value", text)
        found.setdefault(named if at else next(iter(flavors)), []).append(rest)
    return found


def _read_toleration(text: str) -> Toleration:
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not key or (effect and effect not in EFFECTS):
        raise SpecError("--toleration", f"must be written name, name=value or either:{'|'.join(EFFECTS)}", text)
    return Toleration(key, value if equals else None, effect or None)


def _view_queues(found: Sequence[QueueState]) -> View:
    rows = [
        (
            one.name,
            one.cluster_queue,
            use.flavor,
            use.resource,
            use.used,
            use.quota,
            str(one.pending),
            str(one.admitted),
        )
        for one in found
        for use in one.usage
    ]
    columns = ("QUEUE", "CLUSTERQUEUE", "FLAVOR", "RESOURCE", "USED", "QUOTA", "WAITING", "ADMITTED")
    notes = [f"{one.name}: {one.problem or 'guarded by our AdmissionCheck, alone'}" for one in found]
    return View([asdict(one) for one in found], columns, rows, notes or ("no queues",))
