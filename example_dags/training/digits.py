# SPDX-License-Identifier: Apache-2.0
"""Teach a model to read handwritten digits, on one process or on many: a training program worth copying.

It imports nothing of Airflow. All it knows of the world is in its environment, so that it runs unchanged on a laptop
(``python digits.py``), on the local backend and on a cluster. What makes it safe to hold, preempt and restart:

* **It saves often, under its epoch**: ``checkpoint-e<epoch>-<step>.npz``. What a later execution writes sorts behind.
* **It resumes from the newest checkpoint** and goes on as it would have: a step's batch follows from its number.
* **It never writes under an old epoch.** Once a newer execution has claimed the folder, it ends (exit code 3).
* **On TERM it saves and leaves** with exit code 0, in far less than a second.
* **It never waits for the dead.** When a rank vanishes, the others end (exit code 4); rank 0 saves what they had.

``checkpoints.py`` beside it keeps the state folder, ``gang.py`` the connections between the ranks.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from checkpoints import Checkpoints, StaleEpochError
from gang import Gang, Identity
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
SEED = 1797
TEST_IMAGES = 360
SHAPE = (65, 10)  # 8 x 8 pixels and a bias; digits


class Stopped(BaseException):
    """TERM has come. Not an error, hence no Exception: nothing that catches errors may swallow it."""


@dataclass(frozen=True)
class Model:
    """All that training changes. A step makes a new one: whenever TERM comes, it finds one or the other, never half."""

    step: int
    weights: Floats  # how much each pixel, and the bias, speaks for each digit

    @classmethod
    def untrained(cls) -> Model:
        return cls(0, np.zeros(SHAPE))

    def after(self, gradient: Floats, learning_rate: float) -> Model:
        return Model(self.step + 1, self.weights - learning_rate * gradient)

    def probabilities(self, images: Floats) -> Floats:
        scores = images @ self.weights
        likelihood: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
        likelihood /= likelihood.sum(axis=1, keepdims=True)
        return likelihood

    def gradient_and_loss(self, images: Floats, digits: Ints) -> Floats:
        """Sums over these images, not means, in one row: those of all ranks add up to those of the whole batch."""
        error = self.probabilities(images)
        chosen = np.arange(len(digits)), digits
        loss = -np.log(error[chosen] + 1e-12).sum()
        error[chosen] -= 1
        return np.append(images.T @ error, loss)

    def accuracy(self, images: Floats, digits: Ints) -> float:
        return float((self.probabilities(images).argmax(axis=1) == digits).mean())


def load_digits() -> tuple[Floats, Ints]:
    """Scikit-learn's 1,797 images of 8 x 8 pixels and a bias, shuffled, always in the same order.

    Read from the file inside scikit-learn: its own ``load_digits()`` gives the same numbers, but importing that takes
    over a second, and this 20 ms. A job that is held and released starts often, so starting must be cheap.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        sys.exit("the digits are part of scikit-learn: pip install scikit-learn")
    with gzip.open(Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")) as file:
        table = np.random.default_rng(SEED).permutation(np.loadtxt(file, delimiter=",", dtype=np.uint8))
    return np.hstack([table[:, :-1] / 16, np.ones((len(table), 1))]), table[:, -1].astype(np.intp)


def train(model: Model, gang: Gang, wish: argparse.Namespace) -> Iterator[tuple[Model, float]]:
    """On every rank: after each step the model, the same everywhere, and the mean loss of the step's batch."""
    images, digits = load_digits()
    delay = 0 if model.step else wish.step_delay
    while model.step < wish.steps:
        batch = np.random.default_rng([SEED, model.step]).integers(TEST_IMAGES, len(digits), wish.batch_size)
        mine = batch[gang.rank :: gang.ranks]
        sums = gang.sum(model.gradient_and_loss(images[mine], digits[mine])) / wish.batch_size
        model = model.after(sums[:-1].reshape(SHAPE), wish.learning_rate)
        yield model, float(sums[-1])
        time.sleep(delay)


def follow(me: Identity, wish: argparse.Namespace) -> None:
    """The other ranks calculate, and neither read nor write the state folder: rank 0 tells them where to begin."""
    gang = Gang(me)
    start = gang.sum(np.zeros(1 + np.prod(SHAPE)))
    for _ in train(Model(int(start[0]), start[1:].reshape(SHAPE)), gang, wish):
        pass


def lead(me: Identity, wish: argparse.Namespace) -> None:
    """Rank 0 calculates as well, keeps the checkpoints and writes the result."""
    checkpoints = Checkpoints(me.state_dir, me.epoch)
    resumed_from = checkpoints.newest()
    model = start = Model(*checkpoints.load(resumed_from)) if resumed_from else Model.untrained()
    origin = f"resumed from {resumed_from}" if resumed_from else "no checkpoint yet"
    say(f"epoch {me.epoch} begins at step {start.step}: {origin}")

    gang = Gang(me)
    gang.sum(np.append(start.step, start.weights))  # the others add zeros: this is how they get to know it
    images, digits = load_digits()
    test = images[:TEST_IMAGES], digits[:TEST_IMAGES]
    try:
        for model, loss in train(start, gang, wish):
            if model.step % wish.checkpoint_every == 0 or model.step == wish.steps:
                accuracy = model.accuracy(*test)
                say(f"epoch {me.epoch} step {model.step}/{wish.steps} loss {loss:.4f} accuracy {accuracy:.4f}")
                checkpoints.save(model.step, model.weights)
    except (Stopped, ConnectionError):
        name = checkpoints.save(model.step, model.weights)
        say(f"epoch {me.epoch} interrupted at step {model.step}: saved {name}")
        raise

    result = {"accuracy": round(model.accuracy(*test), 4), "steps": model.step}
    result_line = json.dumps(result | {"resumed_from": resumed_from, "epoch": me.epoch})
    # In place, not renamed into place: on a cluster this file is mounted alone.
    me.result_path.write_text(result_line)
    say(f"epoch {me.epoch} done: {result_line}")


def say(line: str) -> None:
    print(line, flush=True)  # at once, also into a pipe: these lines are somebody's only window on the training


def stop(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # asked again while saving: still saving
    raise Stopped


def wishes(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=256, help="images a step, over all ranks")
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--step-delay", type=float, default=0, metavar="SECONDS", help="dawdle until interrupted")
    return parser.parse_args(arguments)


def main() -> int:
    signal.signal(signal.SIGTERM, stop)
    try:
        me, wish = Identity.from_environment(os.environ), wishes(sys.argv[1:])
        (lead if me.rank == 0 else follow)(me, wish)
    except Stopped:
        return 0
    except StaleEpochError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 3
    except ConnectionError as error:
        print(f"lost a peer: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
