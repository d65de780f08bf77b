# SPDX-License-Identifier: Apache-2.0
"""What all operators share: from a running task to an adapter of its connection, and into a deferral.

DAG files import it, so what only a running task needs is imported then. Subclasses define one `__init__` each, straight
on Airflow's: every further level costs as much as an empty operator whenever a DAG file is parsed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar

from airflow.sdk import BaseOperator

from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.hooks.plain_values import are_plain

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.hooks import dispatch
    from airflow_provider_dispatch.hooks.settings import ConnectionSettings
    from airflow_provider_dispatch.operators import leg as legs
    from airflow_provider_dispatch.operators.leg import Leg
else:
    dispatch = deferred("airflow_provider_dispatch.hooks.dispatch")
    legs = deferred("airflow_provider_dispatch.operators.leg")

T = TypeVar("T")

DEFAULT_CONNECTION_ID = "dispatch_default"

DEFERRAL_MARGIN = timedelta(seconds=60)
"""Airflow's own limit of a deferral orphans the job, so it comes this much later than ours."""


class DispatchOperator(BaseOperator):
    """Base of the operators. Subclasses set `dispatch_conn_id` and `deferrable`.

    :cvar patience: how long a deferrable task waits in its worker: what is true by then costs no deferral.
    """

    dispatch_conn_id: str
    deferrable: bool
    patience: ClassVar[timedelta] = timedelta(seconds=3)

    def _keep(self, **attributes: object) -> None:
        """Set attributes at once, within `__init__`: Airflow's own way would look at each of them."""
        vars(self).update(attributes)

    def _set_xcomargs_dependencies(self) -> None:
        # Overrides Airflow's own search, which is the dearest part of a nested field. Where it is named otherwise, this
        # is never called and the search made as ever.
        if not are_plain(getattr(self, name, None) for name in self.template_fields):
            super()._set_xcomargs_dependencies()

    def _begin_leg(self, context: Context, *, is_resumed: bool = False) -> Leg:
        settings = dispatch.DispatchHook(self.dispatch_conn_id).settings()
        patience = self.patience if self.deferrable else None
        return legs.build_leg(self, context, settings, patience=patience, is_resumed=is_resumed)

    def _call(self, settings: ConnectionSettings, call: Callable[[DispatchAdapter], Awaitable[T]]) -> T:
        """Ask an adapter of its own from this thread."""
        adapter = dispatch.DispatchHook(self.dispatch_conn_id).build_adapter(settings)
        return dispatch.run_with_adapter(adapter, call)

    def _defer_until(self, trigger: BaseTrigger, leg: Leg) -> NoReturn:
        """Let go of the worker; the task goes on in its ``resume``."""
        limit = None if leg.deadline is None else max(leg.deadline - leg.clock(), timedelta(0)) + DEFERRAL_MARGIN
        self.defer(trigger=trigger, method_name="resume", timeout=limit)
