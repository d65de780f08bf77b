# SPDX-License-Identifier: Apache-2.0
"""What an administrator decides about a cluster: which namespaces may run jobs, for whom, watched by which controller.

Plain values; the command reads them from options, :mod:`.places` from a cluster that is set up already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import airflow_provider_dispatch
from airflow_provider_dispatch.exceptions import SpecError

NAME = "dispatch"
IMAGE = "dispatch-admission"
DEFAULT_IMAGE = f"{IMAGE}:{airflow_provider_dispatch.__version__}"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, order=True)
class Account:
    """A service account."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class JobsNamespace:
    """A namespace in which jobs may run.

    :param accounts: who starts them there; none means an account of its own, made in the namespace.
    :param is_watched: the controller watches over it. Without, only plain mode is possible.
    """

    name: str
    accounts: tuple[Account, ...] = ()
    is_watched: bool = True

    def __post_init__(self) -> None:
        check_name("namespace", self.name)


@dataclass(frozen=True, slots=True)
class SetupTerms:
    """One installation.

    :param namespaces: at least one.
    :param image: of the controller.
    :param name: all names of the installation begin with it; another one stands beside the first.
    :param watches_all: the controller looks after jobs of every namespace rather than of those that are named.
    :param has_kueue: without Kueue there is no AdmissionCheck.
    """

    namespaces: tuple[JobsNamespace, ...]
    image: str = DEFAULT_IMAGE
    name: str = NAME
    watches_all: bool = False
    has_kueue: bool = True

    def __post_init__(self) -> None:
        check_name("name", self.name)
        if not self.image:
            raise SpecError("controller_image", "must not be empty")

    @property
    def has_controller(self) -> bool:
        """Some namespace is watched."""
        return self.watches_all or any(namespace.is_watched for namespace in self.namespaces)

    @property
    def system_namespace(self) -> str:
        """Where the controller lives."""
        return f"{self.name}-system"

    @property
    def admission_check(self) -> str:
        """Our AdmissionCheck."""
        return f"{self.name}-admission"

    @property
    def names(self) -> dict[str, str]:
        """What a connection must say of it; the defaults are those of the first installation."""
        return {"admission_check": self.admission_check, "lease_namespace": self.system_namespace}


def parse_account(text: str) -> Account:
    """``namespace/name``.

    :raises SpecError: something else.
    """
    namespace, slash, name = text.partition("/")
    if not slash:
        raise SpecError("airflow_account", "must be written namespace/name", text)
    check_name("airflow_account", namespace)
    check_name("airflow_account", name)
    return Account(namespace, name)


def check_name(field: str, name: str) -> None:
    """Refuse what is no name of a namespace.

    :raises SpecError: it isn't one.
    """
    if not _LABEL.fullmatch(name):
        raise SpecError(field, "must be lower-case letters, digits and dashes, at most 63", name)
