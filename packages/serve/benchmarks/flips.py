# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""1,000 flipped bits in one bundle, spread over its byte regions: each must be refused by name.

A region is SHA256SUMS, the manifest, a header of a safetensors file, an array, a program or an
asset. Each has an equal share of the flips, at seeded places, its first and last byte among them.
One line reports each kind of region; any flip that is accepted, or named wrongly, ends the script.
"""

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dovetail_serve import IntegrityError, Tensor, export, verify
from dovetail_serve._safetensors import read_header
from dovetail_serve.bundle.manifest import MANIFEST, SUMS
from measure import report

FLIPS = 1000


def save(path: Path) -> None:
    """Saves a classifier with weights of four dtypes, two batch sizes, and an asset."""
    random = np.random.default_rng(0)
    weights = {
        "embed.table": random.normal(size=(97, 16)).astype(jnp.bfloat16),
        "layers.0.kernel": random.normal(size=(16, 24)).astype("float32"),
        "layers.0.bias": random.normal(size=24).astype("float32"),
        "layers.1.codes": random.integers(-8, 8, size=(24, 5)).astype(jnp.int4),
        "layers.1.scale": np.float32(0.125),
    }

    def fn(p, *, ids):
        x = p["embed.table"][ids].astype("float32")
        x = jnp.tanh(x @ p["layers.0.kernel"] + p["layers.0.bias"])
        return {"logits": x @ p["layers.1.codes"].astype("float32") * p["layers.1.scale"]}

    export(
        fn,
        weights,
        inputs={"ids": Tensor(("batch",), "int32")},
        example={"ids": np.array([3, 96, 41], "int32")},
        batch_sizes=(1, 8),
        assets={"labels.txt": b"cat\ndog\nemu\n" * 20},
    ).save(path)


def regions(path: Path) -> dict[tuple[str, str | None], tuple[int, int]]:
    """Returns the range of bytes of each (file, array); None for a header or a whole file."""
    ranges: dict[tuple[str, str | None], tuple[int, int]] = {}
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        name, size = file.relative_to(path).as_posix(), file.stat().st_size
        if file.suffix == ".safetensors":
            tensors = read_header(file).tensors
            ranges |= {(name, array): (t.start, t.stop) for array, t in tensors.items()}
            size = min(tensor.start for tensor in tensors.values())
        ranges[name, None] = (0, size)
    return ranges


def kind(file: str, array: str | None) -> str:
    """Returns the name under which a region is reported."""
    if file.endswith(".safetensors"):
        return f"{file}, {'header' if array is None else 'arrays'}"
    return file.partition("/")[0]


def flip(file: Path, at: int, bit: int) -> None:
    file.chmod(0o644)  # arrays are read-only
    with open(file, "r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ (1 << bit)]))


def refused(path: Path, file: str, array: str | None) -> bool:
    """Tests that a verification fails and names the file and the array."""
    try:
        verify(path)
    except IntegrityError as error:
        # A manifest and its line in the checksums differ from each other; either may be named.
        files = (MANIFEST, SUMS) if file == SUMS else (file,)
        return error.file in files and error.array == array and error.file in str(error)
    return False


def main() -> None:
    random = np.random.default_rng(30)
    refusals: dict[str, list[int]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "1")
        save(path)
        ranges = regions(path)
        for i in range(FLIPS):
            (file, array), (start, stop) = list(ranges.items())[i % len(ranges)]
            rounds = i // len(ranges)
            at = (start, stop - 1)[rounds] if rounds < 2 else int(random.integers(start, stop))
            bit = int(random.integers(8))
            flip(path / file, at, bit)
            if not refused(path, file, array):
                sys.exit(f"bit {bit} of byte {at} of {file} ({array}) was flipped and not refused")
            refusals[kind(file, array)].append(1)
            flip(path / file, at, bit)
        verify(path)
    for name, flips in refusals.items():
        report(f"flips in {name}", metric="refused", unit="fraction", values=flips)


if __name__ == "__main__":
    main()
