# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Streaming export of a checkpoint into safetensors files.

Source leaves are read and proven a group at a time. Each block of a leaf goes at once to its place
in the files, so a stacked leaf is never whole in memory. Reading takes longest, so the next group
is read meanwhile. Orbax 0.12.8 does not save the format; restoring everything and calling
`save_file` takes memory for all of it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from dovetail_checkpoint import _elsewhere
from dovetail_checkpoint._durable import new_directory
from dovetail_checkpoint._safetensors import METADATA
from dovetail_checkpoint.layout import mapping, pieces
from dovetail_checkpoint.layout.pieces import Built, Piece
from dovetail_checkpoint.layout.rules import Rule
from dovetail_checkpoint.layout.safetensors import DTYPES, check_metadata
from dovetail_checkpoint.layout.source import Source
from dovetail_checkpoint.layout.tensor_writer import Leaves, TensorFiles
from dovetail_checkpoint.paths.loading import proven_groups
from dovetail_checkpoint.paths.opening import of_paths_that_stay, open_source
from dovetail_checkpoint.proof.part_digest import part_sums
from dovetail_checkpoint.proof.progress import Progress, counter

# Python numbers are stored as NumPy holds them, and as they are digested.
_NUMBERS = {"python bool": "bool", "python int": "int64", "python float": "float64"}
# Turned, cast and written at a time: memory beside the group.
_BLOCK_BYTES = 64 << 20


@_elsewhere.call
@of_paths_that_stay
@jax.transfer_guard("allow")
def export_safetensors(
    path: str | Path,
    directory: str | Path,
    *,
    item: str | None = None,
    rules: Sequence[Rule] = (),
    file_bytes: int = 5_000_000_000,
    metadata: Mapping[str, str] | None = None,
    group_bytes: int = 1 << 30,
    progress: Progress | None = None,
) -> None:
    """Writes the leaves at `path`, changed by `rules`, as safetensors files with digests.

    Args:
        path: As for `load`.
        directory: A new directory. It gets `model.safetensors`, or several files and their index if
            the tensors exceed `file_bytes`. It appears when everything is on disk, or not at all.
            Tensors have the names of leaves.
        item: Name of the tree in a step; None if the step has only one.
        rules: Applied in order to all leaves.
        file_bytes: Size limit of each file's tensors.
        metadata: Texts for the header of each file.
        group_bytes: Bytes to read at a time. Written data lies beside it: memory peaks below two
            groups, or below about five times the largest leaf if this is more.
        progress: Called with bytes done and total bytes.

    Raises:
        ValueError: The rules do not fit, or the format cannot hold a leaf.
        FileExistsError: `directory` is in use.
        DamageError: A leaf differs from its digest.
        OSError: The disk is full.
        RuntimeError: Several processes run. One is enough, and needs no accelerator.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_checkpoint import Store, cast, export_safetensors, inspect
        >>> with Store("run") as store:
        ...     store.save(10, model={"w": jnp.ones(3)})
        >>> export_safetensors("run/10", "hf", item="model", rules=[cast("**", "bfloat16")])
        >>> inspect("hf").trees[0].leaves[0].dtype
        'bfloat16'
    """
    _check(file_bytes=file_bytes, group_bytes=group_bytes)
    check_metadata(metadata or {})
    source = open_source(path, item=item)
    plan = mapping.compiled(source.leaves, rules)
    described = tensors(plan)
    with (
        new_directory(Path(directory).absolute()) as partial,
        TensorFiles(partial, described, file_bytes=file_bytes, metadata=metadata or {}) as files,
    ):
        done = counter(progress, total_bytes=plan.read_bytes)
        digests = _stream(source, plan, files, group_bytes=group_bytes, done=done)
        files.finish(digests)


def _stream(
    source: Source,
    plan: mapping.Explanation,
    files: TensorFiles,
    *,
    group_bytes: int,
    done: Callable[[int], None],
) -> dict[str, str]:
    """Writes all leaves. Returns their digests, computed before the write if none is recorded."""
    known = {name: digest for name in plan.built if (digest := _known_digest(plan, name))}
    sums = {name: np.zeros(2, np.uint32) for name in plan.built if name not in known}
    uses = plan.uses()
    groups = proven_groups(source, dict.fromkeys(uses), group_bytes=group_bytes)
    with ThreadPoolExecutor(1) as pool:  # reads a group while the one before it is written
        coming = pool.submit(next, groups, None)
        while (values := coming.result()) is not None:
            coming = pool.submit(next, groups, None)
            for read in list(values):
                value = np.asarray(values.pop(read))
                for name, piece in uses[read]:
                    for offset, block in _blocks(value, piece):
                        files.write(name, offset, block)
                        if name in sums:
                            shape = plan.built[name].shape
                            sums[name] += part_sums(block, offset=offset, shape=shape)
                del value
                done(mapping.leaf_bytes(source.leaves[read]))
    return {
        name: known.get(name) or "".join(f"{int(x):08x}" for x in sums[name]) for name in plan.built
    }


def _check(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a number of bytes, got {name}={value!r}; use 1 << 30")
    if jax.process_count() > 1:
        raise RuntimeError(
            "export_safetensors must run in one process, got "
            f"process_count={jax.process_count()}; call it on the saved step from a program "
            "without jax.distributed: it reads to the host and needs no accelerator"
        )


def tensors(plan: mapping.Explanation) -> Leaves:
    """Returns shape and dtype of each tensor by its name in the files, in the order of the plan.

    Raises:
        ValueError: The format cannot hold a leaf.
    """
    if not plan.built:
        raise ValueError(
            "an export must have at least one leaf, got none; leave out a rule that drops them"
        )
    shapes = {}
    for name, built in plan.built.items():
        dtype = _NUMBERS.get(built.dtype, built.dtype)
        if dtype not in DTYPES.values():
            advice = f'drop("{name}")'
            if not dtype.startswith("key<"):
                advice = f'cast("{name}", "float32"), or {advice}'
            raise ValueError(
                f"a leaf in safetensors must be of dtype {sorted(DTYPES.values())}, got "
                f"{name}: {built.dtype}; {advice}"
            )
        if not name or name == METADATA:
            raise ValueError(
                f"a leaf in safetensors must have a name other than '' and {METADATA!r}, got "
                f'{name!r}; rename("{name}", "weight")'
            )
        shapes[name] = (built.shape, dtype)
    return shapes


def _known_digest(plan: mapping.Explanation, name: str) -> str | None:
    """Returns the recorded digest of the source leaf, if the leaf is exported unchanged."""
    if not plan.is_unchanged(name):
        return None
    return plan.sources[plan.built[name].pieces[0].source].digest


def _blocks(value: np.ndarray, piece: Piece) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yields the piece in blocks: the offset of each in the result, and its values in row-major
    order.
    """
    axis = next((i for i, n in enumerate(piece.extent) if n > 1), None)
    if axis is None:
        yield piece.offset, np.asarray(pieces.block(value, piece), order="C")
        return
    extent, first = piece.extent, piece.offset[axis]
    rows = max(1, _BLOCK_BYTES * extent[axis] // max(1, math.prod(extent) * value.itemsize))
    origin = replace(piece, offset=(0,) * len(extent))
    whole = Built(shape=extent, dtype=str(value.dtype), pieces=(origin,))
    for start in range(0, extent[axis], rows):
        rows_piece = pieces.sliced(whole, axis, start, min(start + rows, extent[axis])).pieces[0]
        offset = (*piece.offset[:axis], first + start, *piece.offset[axis + 1 :])
        yield offset, np.asarray(pieces.block(value, rows_piece), order="C")
