# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Damages checkpoints of several libraries in the same ways, and counts what reading makes of it.

A trial damages one file of the newest checkpoint, reads everything, compares the values with those
that were saved, and mends the file. A fault is `found` if reading reports it (and, for a Store,
gives the whole step before it), `wrong` if other values come without a word, and `harmless` if the
right ones do.

`--table FILE` writes the page of the documentation; `--part 0.05` makes fewer trials.
"""

import importlib.util
import logging
import random
import resource
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import safetensors.numpy
from fault_page import counted, options, page, write

from dovetail_checkpoint import DamageError, Store, export_safetensors, load
from measure import report

Tree = dict[str, np.ndarray]
Fault = Callable[[Sequence[Path], random.Random], list[Path]]


class Position:
    """The object of a step: a data position."""

    def __init__(self, row: int) -> None:
        self.row = row

    def get_state(self) -> dict:
        return {"row": self.row}

    def set_state(self, state: dict) -> None:
        self.row = state["row"]


def values(step: int) -> Tree:
    rng = np.random.default_rng(step)
    shapes = {"embed": (97, 16), "up": (16, 33), "down": (33, 16), "mu": (97, 16), "nu": (97, 16)}
    tree = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return tree | {"scale": rng.normal(size=16).astype(np.float16)}


def same(found: Tree, step: int) -> bool:
    want = values(step)
    return found.keys() == want.keys() and all(
        np.asarray(found[name]).tobytes() == want[name].tobytes() for name in want
    )


def abstract() -> dict:
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in values(1).items()}


class Arm(Protocol):
    """One library's checkpoint: its files, and what reading them makes of a fault."""

    name: str
    version: str
    files: list[Path]

    def __init__(self, root: Path) -> None: ...
    def read(self) -> str: ...


class OurStore:
    """Two steps of a Store; a fault in the newer must lead to the older."""

    name, version = "Store", "dovetail-checkpoint"
    checksums = True

    def __init__(self, root: Path) -> None:
        self._root = root
        with Store(root, checksums=self.checksums) as store:
            for step in (1, 2):
                store.save(step, model=jax.tree.map(jnp.asarray, values(step)), data=Position(step))
        self.files = [*files_under(root / "2"), root / "dovetail-run.json"]

    def read(self) -> str:
        data = Position(0)
        store = Store(self._root)
        step, items = store.restore(model=abstract(), data=data)
        if step == 2:
            right = same(items["model"], 2) and data.row == 2
            return ("found" if store.report.problems else "harmless") if right else "wrong"
        whole = step == 1 and same(items["model"], 1) and data.row == 1
        return "found" if whole else "wrong"


class WithoutChecksums(OurStore):
    """The same with digests of leaves alone."""

    name, checksums = "Store(checksums=False)", False


class OurSafetensors:
    """Several files with an index, exported from a step."""

    name, version = "export_safetensors", "dovetail-checkpoint"

    def __init__(self, root: Path) -> None:
        with Store(root / "run") as store:
            store.save(2, model=jax.tree.map(jnp.asarray, values(2)))
        export_safetensors(root / "run" / "2", root / "export", file_bytes=8_000)
        self._path = root / "export"
        self.files = files_under(self._path)
        assert len(self.files) > 3

    def read(self) -> str:
        try:
            found = load(self._path, values(1))
        except (DamageError, ValueError):
            return "found"
        return "harmless" if same(found, 2) else "wrong"


class Peer:
    """A library that returns values, or raises."""

    name: str
    version: str
    files: list[Path]

    def load(self) -> Tree:
        raise NotImplementedError

    def read(self) -> str:
        try:
            found = self.load()
        except Exception:  # each library has types of its own: any word is a word
            return "found"
        return "harmless" if same(found, 2) else "wrong"


class PlainOrbax(Peer):
    name, version = "Orbax v1", "orbax-checkpoint"

    def __init__(self, root: Path) -> None:
        self._path = root / "step"
        ocp.save_checkpointables(str(self._path), {"model": jax.tree.map(jnp.asarray, values(2))})
        self.files = files_under(self._path)

    def load(self) -> Tree:
        place = jnp.zeros(()).sharding
        target = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
            for name, x in abstract().items()
        }
        return ocp.load_checkpointables(str(self._path), {"model": target})["model"]


class PlainSafetensors(Peer):
    name, version = "safetensors", "safetensors"

    def __init__(self, root: Path) -> None:
        self.files = [root / "model.safetensors"]
        safetensors.numpy.save_file(values(2), self.files[0])

    def load(self) -> Tree:
        return safetensors.numpy.load_file(self.files[0])


class Npz(Peer):
    name, version = "numpy.savez", "numpy"

    def __init__(self, root: Path) -> None:
        self.files = [root / "model.npz"]
        np.savez(self.files[0], **values(2))

    def load(self) -> Tree:
        with np.load(self.files[0]) as archive:
            return dict(archive)


class TorchDcp(Peer):
    name, version = "torch DCP", "torch"

    def __init__(self, root: Path) -> None:
        import torch.distributed.checkpoint as dcp  # not installed everywhere

        self._path = root / "dcp"
        dcp.save(self._tensors(values(2)), checkpoint_id=self._path, no_dist=True)
        self.files = files_under(self._path)

    def load(self) -> Tree:
        import torch.distributed.checkpoint as dcp

        state = self._tensors({name: np.zeros_like(x) for name, x in values(2).items()})
        try:
            dcp.load(state, checkpoint_id=self._path, no_dist=True)
        except dcp.CheckpointException as error:  # no Exception: it derives from BaseException
            raise RuntimeError(str(error)) from error
        return {name: x.numpy() for name, x in state.items()}

    def _tensors(self, tree: Tree) -> dict:
        import torch

        return {name: torch.from_numpy(x.copy()) for name, x in tree.items()}


def flip(files: Sequence[Path], moments: random.Random) -> list[Path]:
    """One bit of a random file: every second time the file is drawn by its size."""
    sizes = [path.stat().st_size for path in files]
    by_size = moments.random() < 0.5
    (path,) = moments.choices(files, sizes if by_size else [size > 0 for size in sizes])
    data = bytearray(path.read_bytes())
    data[moments.randrange(len(data))] ^= 1 << moments.randrange(8)
    path.write_bytes(data)
    return [path]


def truncate(files: Sequence[Path], moments: random.Random) -> list[Path]:
    path = moments.choice([path for path in files if path.stat().st_size])
    path.write_bytes(path.read_bytes()[: moments.randrange(path.stat().st_size)])
    return [path]


def zero(files: Sequence[Path], moments: random.Random) -> list[Path]:
    """Up to 4 KiB of zeros, as a lost page."""
    path = moments.choice([path for path in files if any(path.read_bytes())])
    data, before = bytearray(path.read_bytes()), path.read_bytes()
    while data == before:
        start = moments.randrange(len(data))
        length = min(4096, len(data) - start)
        data[start : start + length] = bytes(length)
    path.write_bytes(data)
    return [path]


def swap(files: Sequence[Path], moments: random.Random) -> list[Path]:
    one, other = moments.sample(list(files), 2)
    while one.read_bytes() == other.read_bytes():
        one, other = moments.sample(list(files), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return [one, other]


def lose(files: Sequence[Path], moments: random.Random) -> list[Path]:
    path = moments.choice(files)
    path.unlink()
    return [path]


FAULTS: dict[str, tuple[Fault, int]] = {
    "one flipped bit": (flip, 1000),
    "a truncated file": (truncate, 100),
    "a zeroed block": (zero, 100),
    "two swapped files": (swap, 100),
    "a missing file": (lose, 100),
}
_MEMORY_BYTES = 12 << 30
OURS: list[type[Arm]] = [OurStore, WithoutChecksums, OurSafetensors]
ARMS: list[type[Arm]] = [*OURS, PlainOrbax, TorchDcp, PlainSafetensors, Npz]


def files_under(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def outcomes(arm: Arm, fault: Fault, trials: int) -> Counter[str]:
    """What reading made of each trial; every file is mended after it."""
    moments, counts = random.Random(7), Counter()
    whole = {path: path.read_bytes() for path in arm.files}
    for _ in range(trials):
        harmed = fault(arm.files, moments)
        counts[arm.read()] += 1
        for path in harmed:
            path.write_bytes(whole[path])
    assert arm.read() == "harmless", "the files were not mended"
    return counts


_HEAD = """# What damage does to checkpoints

Written by `packages/checkpoint/benchmarks/faults.py`. Each trial damages one file of a checkpoint
(two when they are swapped) and reads everything. A cell is **found / wrong / harmless**, in percent
of the trials: reading reports the fault, other values come without a word, or the right ones come.
For the Store, found also means that the whole step before was restored, bit for bit, or, if only
`dovetail-run.json` was damaged, the newest. Every second flip draws its file by size, else all
files are equally likely. Harmless for the Store is only the loss of the checksums or of
`dovetail-run.json`, and without checksums damage to files that hold no value: what is restored is
still proven by the digests of its leaves.
"""


def main() -> None:
    args = options(__doc__ or "")
    logging.disable(logging.CRITICAL)  # Orbax and our Store log each fault
    # A damaged size may ask for more memory than there is; an error then, found, and not a kill.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    installed = [arm for arm in ARMS if arm is not TorchDcp or importlib.util.find_spec("torch")]
    found: dict[str, dict[str, Counter[str]]] = {fault: {} for fault in FAULTS}
    with tempfile.TemporaryDirectory() as folder:
        for i, kind in enumerate(installed):
            (Path(folder) / str(i)).mkdir()
            arm = kind(Path(folder) / str(i))
            for name, (fault, trials) in FAULTS.items():
                alone = fault is swap and len(arm.files) == 1
                count = 0 if alone else max(2, round(trials * args.part))
                found[name][kind.name] = outcomes(arm, fault, count)
    for name, by_arm in found.items():
        for arm in OURS:
            for kind in installed[len(OURS) :] if arm is OurStore else [PlainOrbax]:
                ours, peer = by_arm[arm.name], by_arm[kind.name]
                report(
                    name if arm is OurStore else f"{name}, {arm.name}",
                    metric="not wrong",
                    unit="of the trials",
                    values=[1 - ours["wrong"] / ours.total()],
                    peer=kind.version,
                    **counted(ours, peer),
                )
    write(args.table, page(_HEAD, found, installed))


if __name__ == "__main__":
    main()
