# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Values that steer a selection keep float32 through load, cast, save and surgery."""

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from dovetail_models import (
    Experts,
    Groups,
    LatentAttention,
    Rope,
    abstract,
    cast,
    deepseek_v3,
    explain,
    load,
    relayer,
    save,
)

BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


@pytest.fixture
def model(random_model):
    attention = LatentAttention(
        heads=2, q_rank=None, kv_rank=4, nope_dim=4, rope_dim=2, v_dim=4,
        rope=Rope(theta=1e4, interleaved=True),
    )  # fmt: skip
    experts = Experts(
        count=6, top_k=2, hidden=5, score="sigmoid", scale=2.5, selection_bias=True,
        groups=Groups(count=3, top_k=2, score="top2"),
    )  # fmt: skip
    sizes = {"vocab_size": 17, "embed": 8, "depth": 3, "mlp": 12, "dense": 1}
    return random_model(deepseek_v3(attention=attention, experts=experts, **sizes))


def bias_of(model, layer=1):
    return np.asarray(model.layers[layer].mlp.router.selection_bias[...])


def test_a_load_in_bfloat16_rounds_all_but_the_selection_bias(model, tmp_path):
    save(model, tmp_path / "m")
    rounded = load(tmp_path / "m", dtype=jnp.bfloat16)
    assert rounded.layers[1].mlp.router.kernel.dtype == jnp.bfloat16
    np.testing.assert_array_equal(bias_of(rounded), bias_of(model), strict=True)
    save(rounded, tmp_path / "again")
    tensors = safetensors.numpy.load_file(tmp_path / "again" / "model.safetensors")
    kinds = {str(t.dtype) for name, t in tensors.items() if "correction_bias" not in name}
    assert kinds == {"bfloat16"}
    np.testing.assert_array_equal(tensors[BIAS], bias_of(model), strict=True)


def test_a_cast_and_surgery_leave_it(model):
    rounded = relayer(cast(model, jnp.bfloat16), [0, 2])
    assert rounded.layers[1].mlp.router.kernel.dtype == jnp.bfloat16
    np.testing.assert_array_equal(bias_of(rounded), bias_of(model, 2), strict=True)


def test_a_file_that_rounded_it_is_read_in_float32(model, tmp_path):
    # Else steps of 0.001 would be lost; transformers reads such a file so, too.
    save(model, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    tensors[BIAS] = tensors[BIAS].astype(jnp.bfloat16)
    safetensors.numpy.save_file(tensors, file)
    again = bias_of(load(tmp_path / "m"))
    np.testing.assert_array_equal(again, tensors[BIAS].astype(np.float32), strict=True)
    line = next(line for line in explain(tmp_path / "m").rows if "selection_bias" in line.leaf)
    assert line.dtype == "float32"
    router = abstract(tmp_path / "m").layers[1].mlp.router
    assert router.selection_bias.get_value().dtype == np.float32
