# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Saving and reading under a transfer guard, on both sides of each size that chooses a path."""

import ast
import threading
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dovetail_checkpoint
from dovetail_checkpoint import (
    Store,
    cast,
    convert,
    diff,
    digest,
    export_safetensors,
    load,
    stack,
    verify,
)

KIB, MIB = 1 << 10, 1 << 20
# The sizes in the sources that choose between two ways, by hand: a case lies on both sides of each.
THRESHOLDS = {
    "checksums._BLOCK_BYTES": (4 * MIB,),  # of a file
    "checksums._LARGE_BYTES": (1 * MIB,),  # of a file
    "digest._HOST_BYTES": (8 * MIB,),  # of leaves alike, on several devices
    "export._BLOCK_BYTES": (64 * MIB,),  # of a leaf
    "part_digest._WORDS": (32 * KIB,),  # of a row, in words of 4 bytes
    "region._LONG_BYTES": (64 * KIB,),  # of a run in a file
    "region._SPAN_BYTES": (1 * MIB,),  # of rows in a file
    "sums._BLOCK_BYTES": (4 * MIB, 1 * MIB, 256 * KIB),  # of a leaf on the host, and of a file
    "sums._NUMPY_WORDS": (32 * KIB,),  # of a leaf on the host, in words of 4 bytes
}
NO_PATH = {
    "_safetensors.MAX_HEADER_BYTES": "a limit",
    "_safetensors.ALIGN_BYTES": "an alignment",
    "actions._ACTION_BYTES": "room for a structure of C",
    "agree._SHORT_BYTES": "messages of several processes",
    "cli._FILE_BYTES": "a text",
    "converting._FILE_BYTES": "a default of an option, which only begins another file",
    "storable._NAME_BYTES": "a limit",
    "sums._ALIGNED_BYTES": "an alignment",
    "verifying._GROUP_BYTES": "bytes read at a time, by one way",
}
SMALL = sorted({size for sizes in THRESHOLDS.values() for size in sizes if size <= 4 * MIB})


def test_the_table_has_each_size_of_the_sources():
    sources = Path(dovetail_checkpoint.__file__).parent.rglob("*.py")
    named = {
        f"{path.stem}.{target.id}"
        for path in sources
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id.endswith(("_BYTES", "_WORDS"))
    }
    assert named == {*THRESHOLDS, *NO_PATH}


@contextmanager
def of_process(level):
    jax.config.update("jax_transfer_guard", level)
    try:
        yield
    finally:
        jax.config.update("jax_transfer_guard", None)


def in_thread(work):
    """Runs `work` on a thread, and raises its error here."""
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def guarded(how, level, work):
    """Runs `work` under a guard that is set by the configuration, or here, or on a thread."""
    if how == "config":
        with of_process(level):
            work()
    elif how == "thread beside":
        with of_process(level):
            in_thread(work)
    else:

        def block():
            with jax.transfer_guard(level):
                work()

        block() if how == "context" else in_thread(block)


def leaf(size, seed):
    """Returns float32[size / 4] that no other leaf equals."""
    return np.random.default_rng(seed).normal(size=size // 4).astype("f4")


def both_sides(sizes):
    """Returns leaves one element below each size, of the size, and with more behind it; of the
    size also in rows, on the host and on the devices.
    """
    tree = {"reported": jnp.asarray(leaf(256 * 256 * 4, 7).reshape(256, 256))}
    tree["passed"] = jnp.asarray(leaf(200 * 200 * 4, 8).reshape(200, 200))
    for i, size in enumerate(sizes):
        below, at = leaf(size - 4, i), leaf(size, i + 100)
        tree[f"below{i}"], tree[f"at{i}"] = jnp.asarray(below), at
        tree[f"rows{i}"] = jnp.asarray(at.reshape(4, -1) * 2)
    return tree


def assert_all_ways(root, tree, assert_same):
    """Saves, restores, loads, exports, verifies and compares `tree`, under the guard in force."""
    target = jax.tree.map(
        lambda x: x if isinstance(x, np.ndarray) else jax.ShapeDtypeStruct(x.shape, x.dtype), tree
    )
    with Store(root / "run") as store:
        store.save(1, model=tree)
        step, items = store.restore(model=target)
    assert step == 1
    assert_same(items["model"], tree)
    path = root / "run" / "1"
    assert_same(load(path, target, item="model", group_bytes=MIB), tree)
    export_safetensors(path, root / "out", item="model")
    assert_same(load(root / "out", target), tree)
    export_safetensors(path, root / "narrow", item="model", rules=[cast("**", "bfloat16")])
    convert(path, root / "again", format="orbax", item="model")
    assert verify(root / "run").steps[0].verified
    assert verify(root / "narrow").steps[0].verified
    assert diff(path, root / "again" / "0", item="model").same
    assert len(digest(tree)) == len(tree)


def test_saves_and_reads_of_the_reported_sizes_pass_a_guard_of_the_process(tmp_path, assert_same):
    tree = both_sides([256 * KIB])
    guarded("config", "disallow", lambda: assert_all_ways(tmp_path, tree, assert_same))


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["config", "thread beside", "context", "thread"])
def test_both_sides_of_each_size_pass_a_guard(tmp_path, assert_same, how):
    tree = both_sides(SMALL)
    guarded(how, "disallow", lambda: assert_all_ways(tmp_path, tree, assert_same))


@pytest.mark.thorough
@pytest.mark.parametrize("size", [8 * MIB - 8, 8 * MIB])
def test_leaves_on_several_devices_pass_a_guard(tmp_path, assert_same, size):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    tree = {"w": jax.device_put(leaf(size, 1), place), "b": jax.device_put(leaf(64, 2), place)}
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)

    with of_process("disallow"):
        with Store(tmp_path) as store:
            store.save(1, model=tree)
            _, items = store.restore(model=target)
        assert verify(tmp_path).steps[0].verified
    # Outside: to join the shards is a transfer for jax 0.12.
    assert_same(items["model"], tree)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [31, 33])
def test_an_export_in_blocks_passes_a_guard(tmp_path, monkeypatch, assert_same, rows):
    monkeypatch.setattr("dovetail_checkpoint.paths.export._BLOCK_BYTES", 32 * 256 * KIB)
    halves = [leaf(rows * 256 * KIB, i).reshape(rows, -1) for i in range(2)]
    with Store(tmp_path / "run") as store:
        store.save(1, model={"layers": [{"w": half} for half in halves]})
    out, rules = tmp_path / "out", [stack("layers.#.**", "layers.**")]

    def work():
        export_safetensors(tmp_path / "run" / "1", out, item="model", rules=rules)
        wanted = {"layers": {"w": np.empty((2, *halves[0].shape), np.float32)}}
        assert_same(load(out, wanted), {"layers": {"w": np.stack(halves)}})

    guarded("config", "disallow", work)


def test_a_guard_against_explicit_transfers_lets_saves_pass_and_names_itself(tmp_path):
    value = leaf(256 * KIB, 3)
    tree = {"w": jnp.asarray(value)}
    with of_process("disallow_explicit"):
        with Store(tmp_path / "run") as store:
            store.save(1, model=tree)
            step, items = store.restore(model={"w": value})
            refused = [
                lambda: store.restore(model={"w": jax.ShapeDtypeStruct(value.shape, "f4")}),
                lambda: load(tmp_path / "run" / "1", {"w": tree["w"]}),
            ]
            for call in refused:
                with pytest.raises(
                    RuntimeError,
                    match=r"must allow jax.device_put.*got jax_transfer_guard_host_to_device='dis"
                    r".*set it to 'disallow', or write with",
                ):
                    call()
        export_safetensors(tmp_path / "run" / "1", tmp_path / "out")
        assert verify(tmp_path / "run").steps[0].verified
    assert step == 1
    np.testing.assert_array_equal(items["model"]["w"], value)
    guarded("context", "disallow_explicit", lambda: load(tmp_path / "run" / "1", tree))
