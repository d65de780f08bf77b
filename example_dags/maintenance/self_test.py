# SPDX-License-Identifier: Apache-2.0
"""A node's self-test: does it still multiply matrices without an error? A job for the room that a held training frees.

Freivalds' check: if ``C`` is not ``A B``, a random vector ``x`` shows ``C x != A (B x)`` nearly always, in far less
time than the product took. Prints when it began and ended; imports nothing of Airflow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

SIZE = 192


def is_product_right(random: np.random.Generator) -> bool:
    one, other = random.standard_normal((2, SIZE, SIZE))
    probe = random.standard_normal(SIZE)
    return np.allclose((one @ other) @ probe, one @ (other @ probe))


def say(what: str) -> None:
    rank = os.environ.get("DISPATCH_RANK", "0")
    print(f"self-test of rank {rank} {what} at {datetime.now(UTC).isoformat(timespec='milliseconds')}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to test")
    end = time.monotonic() + parser.parse_args().seconds
    random, products = np.random.default_rng(), 0
    say("begins")
    while time.monotonic() < end:
        if not is_product_right(random):
            say("found a wrong product: take this node out of service,")
            return 1
        products += 1
        time.sleep(0.01)
    say("ends")
    Path(os.environ.get("DISPATCH_RESULT_PATH", os.devnull)).write_text(json.dumps({"products": products}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
