# SPDX-License-Identifier: Apache-2.0
"""Adapters by name, imported on first use. The one place of the package where an import waits until it is needed.

Hooks and the command ask it with a backend's name and that backend's own settings, unread. Nothing else makes an
adapter of an unknown kind, nor the keeper of a backend that an administrator has to set up.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.exceptions import CapabilityError, NotInstalledError, SpecError

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.kubeflow.setup.keeper import ClusterKeeper

AdapterFactory = Callable[[Mapping[str, object]], DispatchAdapter]
KeeperFactory = Callable[[Mapping[str, object]], "ClusterKeeper"]

_FACTORIES: dict[str, str | AdapterFactory] = {
    "kubeflow": "airflow_provider_dispatch.adapters.kubeflow.adapter:build_adapter",
    "local": "airflow_provider_dispatch.adapters.local.adapter:build_adapter",
}
_KEEPERS: dict[str, str | KeeperFactory] = {
    "kubeflow": "airflow_provider_dispatch.adapters.kubeflow.setup.keeper:build_keeper",
}


def register_adapter(backend: str, factory: AdapterFactory) -> None:
    """Make a backend known under a name, for instance a fake in tests. The last registration of a name counts."""
    _FACTORIES[backend] = factory


def register_keeper(backend: str, factory: KeeperFactory) -> None:
    """The same for what sets a backend up."""
    _KEEPERS[backend] = factory


def build_adapter(backend: str, settings: Mapping[str, object]) -> DispatchAdapter:
    """A new adapter; nothing is contacted yet.

    :param settings: the backend's own; checked by it.
    :raises SpecError: no such backend, or a wrong setting.
    :raises NotInstalledError: the backend's library is missing.
    """
    factory = _FACTORIES.get(backend)
    if factory is None:
        raise SpecError("backend", f"must be one of {', '.join(sorted(_FACTORIES))}", backend)
    if isinstance(factory, str):
        factory = cast("AdapterFactory", _load(backend, factory))
        _FACTORIES[backend] = factory
    return factory(settings)


def build_keeper(backend: str, settings: Mapping[str, object]) -> ClusterKeeper:
    """What sets a backend up for jobs; nothing is contacted yet.

    :raises CapabilityError: there is nothing to set up.
    """
    factory = _KEEPERS.get(backend)
    if factory is None:
        raise CapabilityError(f"the {backend} backend has nothing to set up: name a cluster")
    if isinstance(factory, str):
        factory = cast("KeeperFactory", _load(backend, factory))
    return factory(settings)


def _load(backend: str, target: str) -> object:
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise NotInstalledError(f"the {backend} backend needs {error.name}, which is not installed") from error
