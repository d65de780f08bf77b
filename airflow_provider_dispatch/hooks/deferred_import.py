# SPDX-License-Identifier: Apache-2.0
"""Modules that are imported when they are first used, for those that DAG files import.

Every DAG file is parsed again and again, and most never run what they import. So the operators, sensors, triggers and
the hook name the contract and the run-time half of the triggers through here. The type checker sees plain imports::

    if TYPE_CHECKING:
        from airflow_provider_dispatch.core import wire
    else:
        wire = deferred("airflow_provider_dispatch.core.wire")

It serves modules of this package only, and nothing below the hooks uses it.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class _DeferredModule(ModuleType):
    """Stands for a module; whatever is asked of it is asked of the real one."""

    def __getattr__(self, attribute: str) -> object:
        return getattr(importlib.import_module(self.__name__), attribute)


def deferred(name: str) -> ModuleType:
    """The module of that full name, imported on its first use."""
    return _DeferredModule(name)
