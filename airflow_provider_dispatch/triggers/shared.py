# SPDX-License-Identifier: Apache-2.0
"""One adapter per event loop and connection, shared by every trigger that waits there and closed with the last.

So a thousand waiting triggers have one watch between them. Triggers borrow here; nothing else does. It knows no
backend and never touches a job. An edited connection counts for the next adapter, not for one in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.hooks.dispatch import DispatchHook
from airflow_provider_dispatch.hooks.settings import ConnectionSettings

AdapterOpener = Callable[[str], Awaitable[tuple[ConnectionSettings, DispatchAdapter]]]


async def open_adapter(dispatch_conn_id: str) -> tuple[ConnectionSettings, DispatchAdapter]:
    """Fetch the connection and make its adapter."""
    hook = DispatchHook(dispatch_conn_id)
    settings = await hook.asettings()
    return settings, hook.build_adapter(settings)


@dataclass(slots=True)
class _Shared:
    opening: asyncio.Task[tuple[ConnectionSettings, DispatchAdapter]]
    borrowers: int = 0


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = WeakKeyDictionary()
_KEPT_ALIVE: set[asyncio.Task[object]] = set()


def keep_alive(task: asyncio.Task[object]) -> None:
    """Hold a strong reference to a task until it ends: the event loop itself keeps a weak one only."""
    _KEPT_ALIVE.add(task)
    task.add_done_callback(_KEPT_ALIVE.discard)


@dataclass(slots=True)
class Lease:
    """A borrowed adapter. Give it back once; more often does no harm."""

    dispatch_conn_id: str
    settings: ConnectionSettings
    adapter: DispatchAdapter
    is_returned: bool = False

    async def give_back(self) -> None:
        """Return it; the last borrower closes it."""
        if self.is_returned:
            return
        self.is_returned = True
        await _give_back(self.dispatch_conn_id)


async def borrow(dispatch_conn_id: str, opener: AdapterOpener = open_adapter) -> Lease:
    """The adapter of a connection within the running loop.

    :raises DispatchError: the connection is wrong; those who asked at the same time get the same error.
    """
    of_loop = _SHARED.setdefault(asyncio.get_running_loop(), {})
    shared = of_loop.get(dispatch_conn_id)
    if shared is None:
        shared = of_loop[dispatch_conn_id] = _Shared(asyncio.ensure_future(_open(opener, dispatch_conn_id)))
    shared.borrowers += 1
    try:
        settings, adapter = await asyncio.shield(shared.opening)
    except BaseException:
        await _give_back(dispatch_conn_id)
        raise
    return Lease(dispatch_conn_id, settings, adapter)


async def _open(opener: AdapterOpener, dispatch_conn_id: str) -> tuple[ConnectionSettings, DispatchAdapter]:
    return await opener(dispatch_conn_id)


async def _give_back(dispatch_conn_id: str) -> None:
    of_loop = _SHARED[asyncio.get_running_loop()]
    shared = of_loop[dispatch_conn_id]
    shared.borrowers -= 1
    if shared.borrowers:
        return
    del of_loop[dispatch_conn_id]
    closing = asyncio.ensure_future(_close(shared))
    keep_alive(closing)
    await asyncio.shield(closing)


async def _close(shared: _Shared) -> None:
    await asyncio.wait([shared.opening])
    if not shared.opening.cancelled() and shared.opening.exception() is None:
        _, adapter = shared.opening.result()
        await adapter.close()
