# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Against NumPy's own stack, concatenate and transpose."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_checkpoint import cast, drop, fuse, rename, split, stack, transpose, unstack
from dovetail_checkpoint.layout import mapping
from dovetail_checkpoint.layout.source import SourceLeaf
from dovetail_checkpoint.paths.assembly import assembled
from dovetail_checkpoint.proof.digest import hex_digests
from dovetail_checkpoint.proof.report import DamageError

RNG = np.random.default_rng(11)
LEAVES = {
    "embed": RNG.normal(size=(7, 4)).astype(np.float32),
    **{f"layers.{i}.w": RNG.normal(size=(3, 5)).astype(np.float32) for i in range(3)},
    **{f"layers.{i}.b": RNG.normal(size=5).astype(np.float32) for i in range(3)},
    "none": np.zeros((0, 2), np.float32),
    "step": 3,
}


class Source:
    """The leaves above, with the reads counted; `wrong` have another digest."""

    path = Path("nowhere")

    def __init__(self, wrong=()):
        digests = dict(zip(LEAVES, hex_digests(list(LEAVES.values())), strict=True))
        self.reads = []
        self.leaves = {
            name: SourceLeaf(
                name=name,
                shape=np.shape(value),
                dtype="python int" if name == "step" else str(value.dtype),
                digest="f" * 16 if name in wrong else digests[name],
            )
            for name, value in LEAVES.items()
        }

    def read(self, places):
        assert set(places.values()) == {None}
        self.reads.append(list(places))
        return {name: LEAVES[name] for name in places}

    def damaged_files(self, names):
        return []


def made(*rules, source=None, group_bytes=1 << 30):
    source = source or Source()
    plan = mapping.compiled(source.leaves, rules)
    read = []
    found = list(assembled(source, plan, group_bytes=group_bytes, read=read.append))
    assert sum(read) == plan.read_bytes
    assert len(dict(found)) == len(found)
    return dict(found)


def assert_equal(found, want):
    assert found.keys() == want.keys()
    for name, value in want.items():
        assert (np.asarray(found[name]).dtype, np.shape(found[name])) == (
            np.asarray(value).dtype,
            np.shape(value),
        )
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("group_bytes", [1, 300, 1 << 30])
def test_without_rules_the_leaves_are_those_of_the_source(group_bytes):
    assert_equal(made(group_bytes=group_bytes), LEAVES)


@pytest.mark.parametrize("group_bytes", [1, 300, 1 << 30])
def test_leaves_of_many_pieces(group_bytes):
    found = made(
        stack("layers.#.**", "layers.**"),
        transpose("layers.w", (2, 0, 1)),
        split("embed", ("e.a", "e.b"), axis=0, sizes=(2, 5)),
        fuse(("e.b", "e.a"), "embed", axis=0),
        drop("none"),
        group_bytes=group_bytes,
    )
    weights = np.stack([LEAVES[f"layers.{i}.w"] for i in range(3)])
    assert_equal(
        found,
        {
            "layers.w": weights.transpose(2, 0, 1),
            "layers.b": np.stack([LEAVES[f"layers.{i}.b"] for i in range(3)]),
            "embed": np.concatenate([LEAVES["embed"][2:], LEAVES["embed"][:2]]),
            "step": 3,
        },
    )


def test_one_leaf_gives_many():
    found = made(unstack("embed", "rows.#", axis=1), rename("none", "empty"), cast("rows.1", "f2"))
    want = {f"rows.{i}": LEAVES["embed"][:, i] for i in range(4)}
    want["rows.1"] = want["rows.1"].astype(np.float16)
    want["empty"] = LEAVES["none"]
    rest = {name: x for name, x in LEAVES.items() if name not in ("embed", "none")}
    assert_equal(found, {**rest, **want})


def test_an_empty_stack_is_known_without_reading():
    found = made(unstack("none", "n.#", axis=1), stack("n.#", "none"))
    assert found["none"].shape == (2, 0)
    assert found["none"].dtype == jnp.float32


def test_sources_are_read_in_the_order_of_the_leaves_that_need_them():
    source = Source()
    made(stack("layers.#.**", "layers.**"), source=source, group_bytes=1)
    names = [name for group in source.reads for name in group]
    at = {name: i for i, name in enumerate(names)}
    for part in "wb":
        first = at[f"layers.0.{part}"]
        assert [at[f"layers.{i}.{part}"] for i in range(3)] == [first, first + 1, first + 2]


def test_what_is_given_stays_when_the_source_changes():
    source = Source()
    plan = mapping.compiled(source.leaves, [unstack("embed", "rows.#"), drop("layers.**")])
    found = dict(assembled(source, plan, read=lambda _: None))
    before = found["rows.2"].copy()
    LEAVES["embed"][:] += 1
    np.testing.assert_array_equal(found["rows.2"], before)
    LEAVES["embed"][:] -= 1


def test_a_leaf_that_is_not_what_was_written_is_damage():
    with pytest.raises(DamageError, match=r"layers.1.w: its digest is "):
        made(stack("layers.#.**", "layers.**"), source=Source(wrong=["layers.1.w"]))
