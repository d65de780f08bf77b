# SPDX-License-Identifier: Apache-2.0
"""Whether a folder may hold a store: its owner's only, and on a disk of this machine.

SQLite's write-ahead log and the locks of agent and jobs need one kernel beneath them. On Linux the file system's type
is what ``/proc/self/mountinfo`` says of the mount that the folder lies on; elsewhere it is not asked for.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from airflow_provider_dispatch.adapters.local.store.errors import translating
from airflow_provider_dispatch.exceptions import RefusedError

MOUNTS = Path("/proc/self/mountinfo")
NETWORK_TYPES = frozenset({
    "nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "ncpfs", "afs", "9p", "ceph", "coda", "davfs",
    "glusterfs", "gfs", "gfs2", "gpfs", "lustre", "ocfs2", "orangefs", "beegfs", "pvfs2", "wekafs",
    "fuse.sshfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.goofys",
    "fuse.rclone", "fuse.mount-s3", "fuse.blobfuse", "fuse.blobfuse2", "fuse.juicefs", "fuse.moosefs", "fuse.davfs",
    "fuse.smbnetfs", "fuse.curlftpfs", "fuse.afp",
})  # fmt: skip
_OCTAL = re.compile(r"\\([0-7]{3})")


def ensure_folder(folder: Path, *, mounts: Path = MOUNTS) -> None:
    """Make the folder if it is missing, and see that it may hold a store.

    :param mounts: file that lists what is mounted.
    :raises RefusedError: it is somebody else's, no folder, or on a network file system.
    """
    with translating("make the folder", folder):
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.geteuid():
            raise RefusedError(f"{folder} belongs to user {found.st_uid}, and this process is user {os.geteuid()}")
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)
    kind = fetch_file_system(folder, mounts=mounts)
    if kind in NETWORK_TYPES:
        raise RefusedError(f"{folder} lies on a network file system ({kind}); a store needs a disk of this machine")


def fetch_file_system(folder: Path, *, mounts: Path = MOUNTS) -> str:
    """Type of the file system that *folder* lies on; empty where it can't be told."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    return derive_file_system(table, folder.resolve())


def derive_file_system(mounts: str, folder: Path) -> str:
    """The type of the mount nearest above *folder*; the last of several on one point covers the others."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        if folder.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind
