# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder's state is an item of a checkpoint; rules alone lead to Hugging Face files and back."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from dovetail_checkpoint import (
    Store,
    export_safetensors,
    load,
    rename,
    stack,
    transpose,
    unstack,
)
from dovetail_models import abstract, init, llama, save
from dovetail_models import load as load_model

SHAPE = {"vocab_size": 90, "embed": 24, "depth": 2, "heads": 4, "kv_heads": 2}


@pytest.mark.thorough
def test_a_decoder_comes_back_bit_for_bit_and_runs(tmp_path):
    config = llama(**SHAPE, mlp=40)
    model = init(config, seed=0)
    tokens = np.random.default_rng(0).integers(0, 90, (2, 7)).astype(np.int32)
    with Store(tmp_path) as store:
        store.save(3, model=nnx.state(model, nnx.Param))
    other = init(config, seed=1)
    with Store(tmp_path) as store:
        step, items = store.restore(model=nnx.state(abstract(config), nnx.Param))
    nnx.update(other, items["model"])
    assert step == 3
    np.testing.assert_array_equal(other(tokens), model(tokens))


def test_a_decoder_of_another_shape_is_refused_with_both_shapes(tmp_path):
    with Store(tmp_path) as store:
        store.save(1, model=nnx.state(init(llama(**SHAPE, mlp=40), seed=0), nnx.Param))
        store.wait()
        target = nnx.state(abstract(llama(**SHAPE, mlp=48)), nnx.Param)
        with pytest.raises(ValueError, match=r"layers.*mlp.*gate") as refused:
            store.restore(model=target)
    assert "24, 40" in str(refused.value)
    assert "24, 48" in str(refused.value)


def states_equal(a, b) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def test_scanned_and_unrolled_are_one_checkpoint(tmp_path):
    config = llama(**SHAPE, mlp=40)
    model = init(config, seed=0).configure(scan=True)
    state = nnx.state(model, nnx.Param)
    with Store(tmp_path) as store:
        store.save(1, model=state)
        _, items = store.restore(model=nnx.state(abstract(config), nnx.Param))
    assert states_equal(items["model"], state)


def test_layers_stacked_as_other_stacks_keep_them_come_apart_again(tmp_path):
    config = llama(**SHAPE, mlp=40)
    state = nnx.state(init(config, seed=0), nnx.Param)
    wanted = nnx.to_pure_dict(nnx.state(abstract(config), nnx.Param))
    layers = [wanted["layers"][i] for i in sorted(wanted["layers"])]
    wanted["layers"] = jax.tree.map(
        lambda *x: jax.ShapeDtypeStruct((len(x), *x[0].shape), x[0].dtype), *layers
    )
    with Store(tmp_path) as store:
        store.save(1, model=state)
        store.wait()
        stacked = load(tmp_path / "1", wanted, rules=[stack("layers/#/**", "layers/**")])
        store.save(2, model=stacked)
    want = np.stack([np.asarray(state["layers"][i]["mlp"]["up"]["kernel"][...]) for i in range(2)])
    np.testing.assert_array_equal(stacked["layers"]["mlp"]["up"]["kernel"], want)
    target = nnx.state(abstract(config), nnx.Param)
    back = load(tmp_path / "2", target, rules=[unstack("layers/**", "layers/#/**")])
    assert states_equal(back, state)


# What Hugging Face calls the parts of a Llama; `layers.*.` stands before those of a layer.
NAMES = {
    "model.embed_tokens.weight": "embed/embedding",
    "model.layers.*.self_attn.*_proj.weight": "layers/*/attn/*/kernel",
    "model.layers.*.mlp.*_proj.weight": "layers/*/mlp/*/kernel",
    "model.layers.*.input_layernorm.weight": "layers/*/attn_norm/scale",
    "model.layers.*.post_attention_layernorm.weight": "layers/*/mlp_norm/scale",
    "model.norm.weight": "norm/scale",
    "lm_head.weight": "lm_head/kernel",
}


def test_rules_read_what_hugging_face_wrote(tmp_path):
    config = llama(**SHAPE, mlp=40)
    model = init(config, seed=0)
    save(model, tmp_path / "hf")
    rules = [rename(theirs, ours) for theirs, ours in NAMES.items()]
    target = nnx.state(abstract(config), nnx.Param)
    found = load(tmp_path / "hf", target, rules=[*rules, transpose("**/kernel", (1, 0))])
    assert states_equal(found, nnx.state(model, nnx.Param))


@pytest.mark.costly("a model saved, exported and loaded again")
def test_rules_write_what_hugging_face_reads(tmp_path):
    model = init(llama(**SHAPE, mlp=40), seed=0)
    save(model, tmp_path / "hf")
    with Store(tmp_path / "run") as store:
        store.save(1, model=nnx.state(model, nnx.Param))
    rules = [rename(ours, theirs) for theirs, ours in NAMES.items()]
    export_safetensors(
        tmp_path / "run" / "1",
        tmp_path / "export",
        rules=[transpose("**/kernel", (1, 0)), *rules],
        file_bytes=20_000,
    )
    index = json.loads((tmp_path / "export" / "model.safetensors.index.json").read_text())
    want = load_file(tmp_path / "hf" / "model.safetensors")
    assert index["weight_map"].keys() == want.keys()
    for name, file in index["weight_map"].items():
        found = load_file(tmp_path / "export" / file)[name]
        assert (found.dtype, found.tobytes()) == (want[name].dtype, want[name].tobytes())
    shutil.copy(tmp_path / "hf" / "config.json", tmp_path / "export")
    tokens = np.random.default_rng(0).integers(0, 90, (2, 7)).astype(np.int32)
    np.testing.assert_array_equal(load_model(tmp_path / "export")(tokens), model(tokens))
