# SPDX-License-Identifier: Apache-2.0
"""The verb `setup`: the manifests of the controller, of Airflow's rights and of the policies, printed or applied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import build_manifests, write_yaml
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import (
    DEFAULT_IMAGE,
    NAME,
    JobsNamespace,
    SetupTerms,
    parse_account,
)
from airflow_provider_dispatch.cli.cluster import ClusterOptions, tell_result, view_results
from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.cli.screen import View
from airflow_provider_dispatch.cli.session import Session
from airflow_provider_dispatch.exceptions import SpecError, UnavailableError

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.kubeflow.setup.keeper import ClusterKeeper

WHAT_PANEL = "What to set up"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupOptions:
    """What an installation is to be."""

    namespace: Annotated[
        list[str] | None,
        Option(
            "--namespace",
            "-n",
            help="Where jobs may run; may be given again. Default: that of the connection or settings, else default.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = None
    airflow_account: Annotated[
        list[str] | None,
        Option(
            help="namespace/name of a service account that may start jobs there; may be given again. Default: "
            "dispatch-airflow in each of the namespaces, which is made.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = None
    controller_image: Annotated[
        str, Option(help="Image of the controller, built from its Dockerfile.", rich_help_panel=WHAT_PANEL)
    ] = DEFAULT_IMAGE
    all_namespaces: Annotated[
        bool,
        Option("--all-namespaces", help="The controller watches every namespace.", rich_help_panel=WHAT_PANEL),
    ] = False
    plain_without_controller: Annotated[
        bool,
        Option(
            "--plain-without-controller",
            help="No controller watches these namespaces, so that only plain mode works there.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = False

    def build_terms(self, session: Session, instance: str) -> SetupTerms:
        """What they say.

        :raises SpecError: a wrong name, or two wishes that exclude each other.
        """
        if self.all_namespaces and self.plain_without_controller:
            raise SpecError("--all-namespaces", "is about the controller: leave out --plain-without-controller")
        names = self.namespace or [str(session.settings.fields.get("namespace", "default"))]
        accounts = tuple(parse_account(text) for text in self.airflow_account or ())
        namespaces = tuple(
            JobsNamespace(name, accounts, is_watched=not self.plain_without_controller) for name in dict.fromkeys(names)
        )
        return SetupTerms(namespaces, self.controller_image, instance, self.all_namespaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupActions:
    """What to do with it."""

    apply: Annotated[bool, Option("--apply", help="Apply it to the cluster, and stay until the controller acts.")] = (
        False
    )
    no_wait: Annotated[bool, Option("--no-wait", help="With --apply: don't stay.")] = False
    check: Annotated[
        bool, Option("--check", help="Compare the cluster with it. Exit 1: something is missing or differs.")
    ] = False
    delete: Annotated[
        bool, Option("--delete", help="Take these namespaces away, and with the last of them all the rest.")
    ] = False
    yes: Annotated[bool, Option("--yes", "-y", help="With --delete: also while jobs have not ended.")] = False

    @property
    def is_printing(self) -> bool:
        """Nothing is asked of the cluster."""
        return not (self.apply or self.check or self.delete)


async def setup(session: Session, terms: SetupOptions, to_do: SetupActions, cluster: ClusterOptions) -> ExitCode | None:
    """Print what a cluster needs for jobs, or apply it: rights, policies, the controller, its AdmissionCheck.

    Namespaces that are set up already stay so. Kueue, Trainer and JobSet must be there.
    """
    if to_do.apply + to_do.check + to_do.delete > 1:
        raise SpecError("--apply", "give one of --apply, --check and --delete")
    wanted = terms.build_terms(session, cluster.instance)
    if to_do.is_printing:
        _print_manifests(session, wanted)
        return None
    if not to_do.check:
        session.if_interrupted = "what was written stays; the same call again completes it"
    async with cluster.open_keeper(session) as keeper:
        if to_do.delete:
            return await _delete(session, keeper, wanted, although_used=to_do.yes)
        complete = await keeper.complete_terms(wanted)
        if to_do.check:
            compared = await keeper.compare_setup(complete)
            session.screen.show(view_results(compared))
            return ExitCode.OK if all(one.outcome == "same" for one in compared) else ExitCode.FAILED
        done = await keeper.apply_setup(complete, tell=partial(tell_result, session))
        session.screen.show(view_results(done, _list_next_steps(complete)))
        if complete.has_controller and not to_do.no_wait:
            await _await_controller(session, keeper, complete)
    return None


async def _await_controller(session: Session, keeper: ClusterKeeper, terms: SetupTerms) -> None:
    session.if_interrupted = "everything is applied; the controller comes up by itself"
    with session.screen.working("waiting for the controller"):
        problem = await keeper.await_controller(terms, deadline=session.build_deadline())
    if problem:
        raise UnavailableError(
            f"everything is applied, but the controller doesn't act yet: {problem}; the same call waits again, and "
            f"kubectl get pods --namespace {terms.system_namespace} shows its pods"
        )


def _print_manifests(session: Session, terms: SetupTerms) -> None:
    manifests = build_manifests(terms)
    plain = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    session.screen.show(View(plain, notes=write_yaml(manifests).rstrip("\n").splitlines()))


async def _delete(session: Session, keeper: ClusterKeeper, terms: SetupTerms, *, although_used: bool) -> ExitCode:
    done = await keeper.remove_setup(
        terms, although_used=although_used, deadline=session.build_deadline(), tell=partial(tell_result, session)
    )
    session.screen.show(view_results(done))
    return ExitCode.FAILED if any(one.outcome == "left" for one in done) else ExitCode.OK


def _list_next_steps(terms: SetupTerms) -> list[str]:
    first = terms.namespaces[0].name
    if not terms.has_controller:
        return [f"next: dispatch preflight, with settings that name namespace {first} and has_controller: false"]
    notes = [] if terms.has_kueue else ["without Kueue there is no AdmissionCheck: plain mode alone works"]
    if terms.name != NAME:
        notes.append(f"connections need {', '.join(f'{name}: {value}' for name, value in terms.names.items())}")
    return [*notes, f"next: dispatch queue create NAME --namespace {first} --cpu 8 --memory 64Gi"]
