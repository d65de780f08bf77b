# SPDX-License-Identifier: Apache-2.0
"""The one place where errors of SQLite and of the operating system become errors of the contract.

The rule is the contract's question "may I try the same call again?": what passes by itself (busy, full, out of
descriptors) is :class:`UnavailableError`; what somebody has to mend first is :class:`RefusedError`.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_dispatch.exceptions import AdapterError, RefusedError, UnavailableError

_TRANSIENT_ERRNOS = frozenset({
    errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
    errno.ENOSPC, errno.ETIMEDOUT, errno.EDEADLK, errno.ENOLCK,
})  # fmt: skip

_ADVICE = {
    "SQLITE_BUSY": "somebody else is writing; try again",
    "SQLITE_LOCKED": "somebody else is writing; try again",
    "SQLITE_PROTOCOL": "somebody else is writing; try again",
    "SQLITE_INTERRUPT": "the call was interrupted; try again",
    "SQLITE_NOMEM": "there is no memory left; try again later",
    "SQLITE_FULL": "the disk is full; make room and try again",
    "SQLITE_IOERR": "the disk can't be read or written; try again, then look at the disk",
    "SQLITE_CANTOPEN": "the file can't be opened; see that it exists and belongs to you",
    "SQLITE_PERM": "the file belongs to somebody else",
    "SQLITE_AUTH": "the file belongs to somebody else",
    "SQLITE_READONLY": "the file or its folder is read-only for you",
    "SQLITE_CORRUPT": "the file is damaged; move the store's folder away and begin anew, or restore a copy",
    "SQLITE_NOTADB": "the file is no database; move the store's folder away and begin anew, or restore a copy",
}
_TRANSIENT_NAMES = frozenset({
    "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT", "SQLITE_NOMEM", "SQLITE_FULL",
    "SQLITE_IOERR",
})  # fmt: skip


@contextmanager
def translating(what: str, path: Path) -> Iterator[None]:
    """Translate what is raised inside.

    :param what: what was being done, for instance ``read``; begins the message.
    :param path: of the store's file or folder.
    """
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise translate_sqlite(what, path, error) from error
    except OSError as error:
        raise translate_os(what, path, error) from error


def translate_sqlite(what: str, path: Path, error: Exception) -> AdapterError:
    """The contract's error for one of SQLite's."""
    # Only errors that SQLite itself raised carry its code; Python's own complaints about a call carry none.
    name = str(getattr(error, "sqlite_errorname", ""))
    primary = "_".join(name.split("_")[:2])
    kind = UnavailableError if primary in _TRANSIENT_NAMES else RefusedError
    advice = _ADVICE.get(primary, "look at the store's file")
    return kind(f"can't {what} {path}: {error} ({name or type(error).__name__}); {advice}")


def is_passing(error: OSError) -> bool:
    """Whether it passes by itself, or once somebody has made room."""
    return error.errno in _TRANSIENT_ERRNOS


def translate_os(what: str, path: Path, error: OSError) -> AdapterError:
    """The contract's error for one of the operating system's."""
    kind = UnavailableError if is_passing(error) else RefusedError
    where = error.filename if isinstance(error.filename, str) else path
    return kind(f"can't {what} {where}: {error.strerror or error}")
