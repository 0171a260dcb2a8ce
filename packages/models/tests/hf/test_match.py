# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest

from dovetail_models.hf.match import Leaf, match
from dovetail_models.hf.safetensors import Maps, Spec
from dovetail_models.hf.tensors import Plain
from dovetail_models.tables.config_json import ConfigJson
from dovetail_models.tables.ops import Identity, Interleaved, Slice, Transpose
from dovetail_models.tables.table import Family, Row

FUSED = (
    Row("embed.weight", "embed.embedding", Identity()),
    Row("head.weight", "lm_head.kernel", Transpose()),
    Row("h.{i}.gate_up", "layers.{i}.gate", Slice(0, 2, -2, Transpose())),
    Row("h.{i}.gate_up", "layers.{i}.up", Slice(1, 2, -2, Transpose())),
)
APART = (
    *FUSED[:2],
    Row("h.{i}.experts.{e}.w1", "layers.{i}.gate", Transpose()),
    Row("h.{i}.experts.{e}.w3", "layers.{i}.up", Transpose()),
)
LEAVES = {
    "embed.embedding": Leaf(shape=(5, 4), names=("vocab", "embed")),
    "lm_head.kernel": Leaf(shape=(4, 5), names=("embed", "vocab")),
    "layers.7.gate": Leaf(shape=(3, 4, 6), names=("experts", "embed", "mlp")),
    "layers.7.up": Leaf(shape=(3, 4, 6), names=("experts", "embed", "mlp")),
}
SHELL = {"embed.weight": (5, 4), "head.weight": (5, 4)}
ON_DISK_FUSED = SHELL | {"h.7.gate_up": (3, 12, 4)}
ON_DISK_APART = SHELL | {f"h.7.experts.{e}.w{n}": (6, 4) for e in range(3) for n in (1, 3)}


def unread(_):
    """A family's functions on config.json, which matching never calls."""
    raise NotImplementedError


def family(**options):
    tied = ("head.weight", "embed.weight")
    given = {"table": FUSED, "layouts": (APART,), "tied": tied, "inert": frozenset()} | options
    return Family(config_json=ConfigJson(builder=unread, fixed={}), **given)


def on_disk(shapes, dtypes=None):
    """Tensors of a file that is never read."""
    maps, dtypes = Maps(), dtypes or {}
    return {
        name: Plain(Spec(Path("unread"), dtypes.get(name, "F32"), shape, 0, 0), maps)
        for name, shape in shapes.items()
    }


def matched(shapes, of=None, dtypes=None, dropped=()):
    of = of or family()
    return match(of, LEAVES, on_disk(shapes, dtypes), tie=False, dropped=dropped).sources


@pytest.mark.parametrize("shapes", [ON_DISK_FUSED, ON_DISK_APART], ids=["fused", "apart"])
def test_the_layout_is_that_of_the_files(shapes):
    found = matched(shapes)
    assert found.keys() == LEAVES.keys()
    gate = found["layers.7.gate"]
    if shapes is ON_DISK_FUSED:
        assert (gate.name, gate.stacked, len(gate.tensors)) == ("h.7.gate_up", False, 1)
        assert found["layers.7.up"].op == Slice(1, 2, -2, Transpose())
    else:
        assert (gate.name, gate.stacked, len(gate.tensors)) == ("h.7.experts.{e}.w1", True, 3)
        names = {n: t for n, t in on_disk(shapes).items() if n.endswith("w1")}
        assert [t.spec for t in gate.tensors] == [t.spec for t in names.values()]


def test_names_are_compared_with_the_nearest_layout():
    shapes = {name: shape for name, shape in ON_DISK_APART.items() if name != "h.7.experts.1.w3"}
    with pytest.raises(ValueError, match=r"must be those of config\.json") as error:
        matched(shapes | {"h.7.experts.1.w4": (6, 4)})
    assert str(error.value).splitlines()[1:-1] == [
        "  missing h.7.experts.1.w3 (6, 4) (near: h.7.experts.1.w4)",
        "  unexpected h.7.experts.1.w4 (6, 4) (near: h.7.experts.1.w3)",
    ]


@pytest.mark.thorough
def test_a_long_list_is_cut():
    shapes = ON_DISK_FUSED | {f"h.{i}.odd": (1,) for i in range(20_000)}
    del shapes["embed.weight"]
    with pytest.raises(ValueError, match=r"must be those of config\.json") as error:
        matched(shapes)
    lines = str(error.value).splitlines()
    assert lines[1] == "  missing embed.weight (5, 4)"
    assert lines[-2] == "  and 19980 more unexpected"
    assert len(lines) == 1 + 1 + 20 + 1 + 1


PREFIXED = {"t." + n if n != "head.weight" else n: s for n, s in ON_DISK_FUSED.items()}


def test_a_prefix_may_be_left_out_and_the_head_has_none():
    for shapes, name in ((PREFIXED, "t.h.7.gate_up"), (ON_DISK_FUSED, "h.7.gate_up")):
        found = matched(shapes, of=family(prefix="t."))
        assert found["layers.7.up"].name == name
        assert found["lm_head.kernel"].name == "head.weight"
    with pytest.raises(ValueError, match=r"must be those of config\.json") as error:
        matched({n: s for n, s in PREFIXED.items() if n != "t.embed.weight"}, family(prefix="t."))
    assert "missing t.embed.weight (5, 4)" in str(error.value)
    with pytest.raises(ValueError, match=r"with prefix 't\.' or without") as error:
        matched(PREFIXED | {"embed.weight": (5, 4)}, of=family(prefix="t."))
    assert "got embed.weight with both. Remove one" in str(error.value)


def test_what_nothing_computes_is_left_out_aloud(caplog):
    extra = {"h.9.gate_up": (3, 12, 4), "h.9.mtp.norm": (4,), "h.7.mask": (1, 1)}
    masked = family(buffers=("h.{i}.mask",))
    with caplog.at_level(logging.WARNING):
        assert matched(ON_DISK_FUSED | extra, of=masked, dropped=("h.9.*",)).keys() == LEAVES.keys()
    assert [record.getMessage() for record in caplog.records] == [
        "Left out, since no module here computes it: h.9.gate_up, h.9.mtp.norm"
    ]


def test_padding_of_the_vocabulary_is_cut_aloud(caplog):
    padded = ON_DISK_FUSED | {"embed.weight": (8, 4), "head.weight": (8, 4)}
    with caplog.at_level(logging.WARNING):
        assert matched(padded).keys() == LEAVES.keys()
    assert [record.getMessage() for record in caplog.records] == [
        "Cut the vocabulary from the 8 rows of the files to vocab_size=5 of config.json: the rest "
        "is padding."
    ]


@pytest.mark.parametrize("rows", [(8, 5), (8, 9), (4, 4), (5, 4)])
def test_vocabularies_that_differ_or_are_short_are_refused(rows, caplog):
    shapes = ON_DISK_FUSED | {"embed.weight": (rows[0], 4), "head.weight": (rows[1], 4)}
    with pytest.raises(ValueError, match="misshapen") as error:
        matched(shapes)
    wrong = [row for row in rows if row != 5]
    assert str(error.value).count("misshapen") == len(wrong)
    assert f"({wrong[0]}, 4) where config.json gives (5, 4)" in str(error.value)
    assert not caplog.records


def test_a_stack_of_two_dtypes_is_refused():
    found = matched(ON_DISK_APART, dtypes={"h.7.experts.2.w1": "BF16"})
    assert found["layers.7.up"].dtype == np.float32
    with pytest.raises(ValueError, match="must have one dtype") as error:
        _ = found["layers.7.gate"].dtype
    assert "got h.7.experts.{e}.w1 with dtypes=['bfloat16', 'float32']" in str(error.value)
    assert "Save the model in one dtype" in str(error.value)


def test_a_leaf_that_no_row_names_is_refused():
    leaves = LEAVES | {"layers.7.gate.lora_a": Leaf(shape=(4, 1), names=("embed", "rank"))}
    with pytest.raises(ValueError, match="one that the family's files name") as error:
        match(family(), leaves, on_disk(ON_DISK_FUSED), tie=False)
    assert "got layers.7.gate.lora_a. Merge adapters" in str(error.value)


def test_interleaved_leaves_share_a_tensor():
    rows = tuple(
        dataclasses.replace(row, op=Interleaved(i, 2, -1)) for i, row in enumerate(FUSED[2:])
    )
    found = matched(
        SHELL | {"h.7.gate_up": (3, 4, 12)}, of=family(table=(*FUSED[:2], *rows), layouts=())
    )
    assert found["layers.7.gate"].tensors == found["layers.7.up"].tensors
