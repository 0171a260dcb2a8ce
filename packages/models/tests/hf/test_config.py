# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from dovetail_models import Llama3Scaling, Mlp, gemma2, gemma3, gpt_oss, llama, mixtral, qwen3
from dovetail_models.hf.config import describe, parse

SIZES = {"vocab_size": 7, "embed": 4, "depth": 3, "heads": 2, "mlp": 6}
SCALING = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=32)


@pytest.mark.parametrize(
    "config",
    [
        llama(**SIZES),
        llama(**SIZES, tie=True, rope_theta=5e5, rope_scaling=SCALING, mlp_bias=True),
        llama(**SIZES, kv_heads=1, head_dim=6, norm_eps=1e-5, max_length=99, init_std=0.1),
        qwen3(**SIZES),
        qwen3(**SIZES, head_dim=8, attention_bias=True, tie=True),
        dataclasses.replace(qwen3(**SIZES), extra=(("eos_token_id", "[1, 2]"),)),
    ],
)
def test_a_config_survives(config):
    assert parse(describe(config)) == config


def test_what_weights_tell_is_not_kept():
    keys = describe(llama(**SIZES)) | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    assert parse(keys) == llama(**SIZES)


def test_an_allowed_key_is_written_back():
    keys = describe(llama(**SIZES)) | {"my_note": {"a": [1, None]}}
    config = parse(keys, allow=("my_note",))
    assert describe(config)["my_note"] == {"a": [1, None]}


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match=r"model_type must be one of \['bert', ") as error:
        parse({"model_type": "qwen33"})
    assert "model_type='qwen33' (near: qwen3)" in str(error.value)
    assert "Convert the model" in str(error.value)
    with pytest.raises(ValueError, match="family must be one of") as error:
        describe(dataclasses.replace(llama(**SIZES), family="lama"))
    assert "family='lama' (near: llama)" in str(error.value)


def test_a_config_that_its_family_cannot_say_is_refused():
    config = llama(**SIZES)
    wide = dataclasses.replace(config.layers[1], mlp=Mlp(hidden=99))
    config = dataclasses.replace(config, layers=(config.layers[0], wide, config.layers[2]))
    with pytest.raises(ValueError, match="say the whole config") as error:
        describe(config)
    assert "hidden=99" in str(error.value)
    assert "as the family's function makes them" in str(error.value)


@pytest.mark.parametrize(
    "config",
    [gemma2(**SIZES, window=None), gemma3(**SIZES, pattern=1), gpt_oss(**SIZES, window=None)],
)
def test_a_window_is_written_without_a_windowed_layer(config):
    """transformers refuses null, and uses the number in no layer."""
    keys = describe(config)
    assert keys["sliding_window"] > 0
    assert parse(keys) == config


def test_a_layer_of_another_kind_is_refused():
    config = mixtral(**SIZES)
    dense = dataclasses.replace(config.layers[1], mlp=Mlp(hidden=6))
    config = dataclasses.replace(config, layers=(config.layers[0], dense))
    with pytest.raises(ValueError, match="must have Attention with RoPE and Experts") as error:
        describe(config)
    assert "got layers[1] with Attention(" in str(error.value)
    assert "Mlp(hidden=6" in str(error.value)
    assert "or save nnx.state(model) with dovetail_checkpoint.Store or Orbax" in str(error.value)


def test_a_cap_on_gemma_3s_scores_is_refused():
    with pytest.raises(ValueError, match="cannot cap the scores") as error:
        describe(gemma3(**SIZES, score_cap=20.0))
    assert "got score_cap=20.0" in str(error.value)
    assert "Build the model with score_cap=None" in str(error.value)
