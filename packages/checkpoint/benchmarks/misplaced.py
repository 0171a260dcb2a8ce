# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Puts whole steps where they do not belong, and counts what a restore of the newest makes of it.

A trial changes a run of three steps by directories alone: every file of every step stays intact.
It is `found` if the Store reports each misplaced step that it meets and restores the newest right
one, `wrong` if a step comes under the number of another one, or from another run, without a word,
and `harmless` if the newest step is right and no misplaced one was met. Peer: Orbax's own
`Checkpointer`, which has no identity to compare.

`--table FILE` writes the page of the documentation; `--part 0.05` makes fewer trials.
"""

import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
from fault_page import counted, options, page, write

from dovetail_checkpoint import Store
from measure import report

STEPS = (10, 20, 30)
SHAPE = (33, 16)
Move = Callable[[Path, Path, random.Random], set[int]]


def values(run: str, step: int) -> np.ndarray:
    seed = [ord(letter) for letter in run] + [step]
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def rename(run: Path, other: Path, draw: random.Random) -> set[int]:
    target = draw.choice([15, 25, 40, 50])
    (run / str(draw.choice(STEPS))).rename(run / str(target))
    return {target}


def copy(run: Path, other: Path, draw: random.Random) -> set[int]:
    target = draw.choice([15, 25, 40, 50])
    shutil.copytree(run / str(draw.choice(STEPS)), run / str(target))
    return {target}


def swap(run: Path, other: Path, draw: random.Random) -> set[int]:
    one, two = draw.sample(STEPS, 2)
    (run / str(one)).rename(run / "away")
    (run / str(two)).rename(run / str(one))
    (run / "away").rename(run / str(two))
    return {one, two}


def link(run: Path, other: Path, draw: random.Random) -> set[int]:
    target = draw.choice([15, 25, 40, 50])
    (run / str(target)).symlink_to(draw.choice([run, other]) / str(draw.choice(STEPS)))
    return {target}


def replace(run: Path, other: Path, draw: random.Random) -> set[int]:
    step = draw.choice(STEPS)
    shutil.rmtree(run / str(step))
    shutil.copytree(other / str(step), run / str(step))
    return {step}


MOVES: dict[str, Move] = {
    "a renamed step": rename,
    "a copied step": copy,
    "two swapped steps": swap,
    "a symlink to a step": link,
    "the same step of another run": replace,
}
TRIALS = 200


class OurStore:
    """A Store; it must report the misplaced steps above the one that it restores."""

    name, version = "Store", "dovetail-checkpoint"

    def write(self, root: Path, run: str) -> None:
        with Store(root) as store:
            for step in STEPS:
                store.save(step, model={"w": jnp.asarray(values(run, step))})

    def restore(self, root: Path) -> tuple[int, np.ndarray, set[int]]:
        store = Store(root)
        step, items = store.restore(model={"w": jax.ShapeDtypeStruct(SHAPE, jnp.float32)})
        refused = {x.step for x in store.report.steps if x.problems and not x.damaged}
        return step, np.asarray(items["model"]["w"]), refused


class Orbax:
    """Orbax's Checkpointer, at its newest step."""

    name, version = "Orbax v1", "orbax-checkpoint"

    def write(self, root: Path, run: str) -> None:
        with ocp.training.Checkpointer(str(root)) as checkpointer:
            for step in STEPS:
                checkpointer.save_checkpointables(
                    step, {"model": {"w": jnp.asarray(values(run, step))}}
                )

    def restore(self, root: Path) -> tuple[int, np.ndarray, set[int]]:
        target = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=jnp.zeros(()).sharding)
        with ocp.training.Checkpointer(str(root)) as checkpointer:
            step = checkpointer.latest.step
            items = checkpointer.load_checkpointables(step, {"model": {"w": target}})
        return step, np.asarray(items["model"]["w"]), set()


def outcomes(arm: OurStore | Orbax, move: Move, folder: Path, trials: int) -> Counter[str]:
    draw, counts = random.Random(7), Counter()
    for name in ("run", "other"):
        if not (folder / name).exists():
            arm.write(folder / name, name)
    for _ in range(trials):
        run = shutil.copytree(folder / "run", folder / "trial")
        misplaced = move(run, folder / "other", draw)
        right = {int(x.name) for x in run.iterdir() if x.name.isdigit()} - misplaced
        counts[outcome(arm, run, misplaced, right)] += 1
        shutil.rmtree(run)
    return counts


def outcome(arm: OurStore | Orbax, run: Path, misplaced: set[int], right: set[int]) -> str:
    step, restored, refused = arm.restore(run)
    is_right = step in right and np.array_equal(restored, values("run", step))
    met = {number for number in misplaced if number > max(right)}
    if not is_right or step != max(right) or refused != met:
        return "wrong"
    return "found" if met else "harmless"


_HEAD = """# What misplaced steps do to checkpoints

Written by `packages/checkpoint/benchmarks/misplaced.py`. Each trial renames, copies, swaps, links
or replaces whole steps of a run with three steps; all their files stay intact. Then the newest step
is restored. A cell is **found / wrong / harmless**, in percent of the trials: each misplaced step
that was met is reported and the newest right one restored; a step comes under the number of another
one or from another run; or no misplaced step was met, since it lies below the newest one.

"""


def main() -> None:
    args = options(__doc__ or "")
    logging.disable(logging.CRITICAL)  # our Store logs each fault
    arms: list[OurStore | Orbax] = [OurStore(), Orbax()]
    found: dict[str, dict[str, Counter[str]]] = {move: {} for move in MOVES}
    with tempfile.TemporaryDirectory() as folder:
        for arm in arms:
            (Path(folder) / arm.name).mkdir()
            for name, move in MOVES.items():
                trials = max(2, round(TRIALS * args.part))
                found[name][arm.name] = outcomes(arm, move, Path(folder) / arm.name, trials)
    for name, by_arm in found.items():
        ours, peer = by_arm["Store"], by_arm["Orbax v1"]
        peer_share = 1 - peer["wrong"] / peer.total()
        report(
            name,
            metric="not wrong",
            unit="of the trials",
            values=[1 - ours["wrong"] / ours.total()],
            peer="orbax-checkpoint",
            peer_values=[peer_share] if peer_share else None,  # no ratio to nothing
            **counted(ours, peer),
        )
    write(args.table, page(_HEAD, found, arms))


if __name__ == "__main__":
    main()
