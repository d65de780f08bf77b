# SPDX-License-Identifier: Apache-2.0
"""Who this process is, and its connections to the other ranks: what PyTorch would bring for training in parallel.

A rank that vanishes is a ``ConnectionError`` on every other one, never an endless wait.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Identity:
    """Which process of which execution this is. Without a scheduler: rank 0 of 1, epoch 0, state in ./state."""

    epoch: int
    rank: int
    ranks: int
    leader: tuple[str, int]
    state_dir: Path
    result_path: Path

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Identity:
        address = env.get("DISPATCH_LEADER_ADDR") or env.get("MASTER_ADDR") or "127.0.0.1"
        return cls(
            epoch=int(env.get("DISPATCH_EPOCH", "0")),
            # RANK counts through all roles of the job, DISPATCH_RANK only inside one.
            rank=int(env.get("RANK") or env.get("DISPATCH_RANK") or "0"),
            ranks=int(env.get("WORLD_SIZE") or env.get("DISPATCH_NODES") or "1"),
            leader=(address, int(env.get("MASTER_PORT", "29500"))),
            state_dir=Path(env.get("DISPATCH_STATE_DIR", "state")),
            result_path=Path(env.get("DISPATCH_RESULT_PATH", os.devnull)),
        )


class Gang:
    """The connections between the ranks. Plain numbers travel, no pickles: who reaches the port can't run code here."""

    def __init__(self, me: Identity, patience_seconds: float = 30) -> None:
        self.rank, self.ranks = me.rank, me.ranks
        meet = self._welcome if self.rank == 0 else self._join
        self._peers = meet(me, patience_seconds) if me.ranks > 1 else []

    @staticmethod
    def _welcome(me: Identity, patience_seconds: float) -> list[socket.socket]:
        peers: dict[int, socket.socket] = {}
        wait_for_name(me.leader[0], patience_seconds)
        with socket.create_server(me.leader) as server:
            server.settimeout(patience_seconds)
            while len(peers) < me.ranks - 1:
                try:
                    peer, _ = server.accept()
                    peer.settimeout(patience_seconds)
                    rank, epoch = receive(peer, np.zeros(2))
                except TimeoutError:
                    raise ConnectionError(f"of {me.ranks} ranks only {[0, *sorted(peers)]} have come") from None
                except ConnectionError:
                    continue  # a readiness check, which only knocks
                if epoch != me.epoch:
                    peer.close()  # a straggler of an older execution
                    continue
                peer.settimeout(None)
                peers[int(rank)] = peer
        return [peers[rank] for rank in sorted(peers)]

    @staticmethod
    def _join(me: Identity, patience_seconds: float) -> list[socket.socket]:
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                leader = socket.create_connection(me.leader)
                leader.sendall(np.array([me.rank, me.epoch], float).data)
                return [leader]
            except OSError as error:  # rank 0, or its name, may come later than we
                if time.monotonic() > deadline:
                    raise ConnectionError(f"rank 0 can't be reached at {me.leader}: {error}") from error
                time.sleep(0.05)

    def sum(self, numbers: Floats) -> Floats:
        """The sum over all ranks, on every rank, the same to the last bit: rank 0 adds, in the order of the ranks."""
        try:
            if self.rank == 0:
                numbers = sum((receive(peer, numbers) for peer in self._peers), numbers)
            for peer in self._peers:  # rank 0 sends the sum to all, another rank its part to rank 0
                peer.sendall(numbers.data)
            return numbers if self.rank == 0 else receive(self._peers[0], numbers)
        except ConnectionError:
            # TERM goes to all ranks, but not in the same instant. If another left for it, ours arrives while we sleep.
            time.sleep(0.3)
            raise


def wait_for_name(name: str, patience_seconds: float) -> None:
    """On a cluster a rank may begin before its own name is known."""
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            socket.getaddrinfo(name, None)
            return
        except socket.gaierror as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"nobody knows where {name} is: {error}") from error
            time.sleep(0.05)


def receive(peer: socket.socket, like: Floats) -> Floats:
    """An array of the shape of ``like``."""
    message = peer.recv(like.nbytes, socket.MSG_WAITALL)
    if len(message) < like.nbytes:
        raise ConnectionError("another rank has vanished in the middle of the training")
    return np.frombuffer(message).reshape(like.shape)
