# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations at the edge of a family: transformers opens what `save` wrote, with our logits."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from dovetail_models import load, save  # noqa: E402
from dovetail_models.families import shape  # noqa: E402
from dovetail_models.hf.config import parse  # noqa: E402

pytestmark = pytest.mark.parity

WINDOWED = ["mistral", "mixtral", "qwen2", "qwen3", "qwen3-moe", "gemma2", "gpt-oss"]


@nnx.jit
def forward(model, tokens):
    return model(tokens)


@pytest.fixture
def config_of(built):
    """A function that gives the configuration of a case, with other keys of config.json."""

    def get(name, **keys):
        values = built(name).config.to_dict() | keys
        values["architectures"] = [type(built(name)).__name__]
        return parse(values, allow=tuple(values))

    return get


def check(config, tokens, path, random_model):
    """Saves a random model, opens it with transformers, and compares the logits."""
    model = random_model(config)
    save(model, path)
    # In float64: on some CPUs two float32 results of one mixture differ by more than the tolerance,
    # though each is within it. The grouped product of torch's experts has no float64.
    opened = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float64, experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        want = opened(torch.from_numpy(tokens).long()).logits.numpy()
    with jax.default_matmul_precision("highest"):
        got = np.asarray(forward(model, tokens))
    assert want.dtype == np.float64
    # As for the logits of test_transformers.py.
    assert np.abs(got - want).max() < 5e-6 * np.abs(want).max()
    assert load(path).config == config
    return opened.config


@pytest.mark.parametrize("name", WINDOWED)
def test_a_window_family_without_a_windowed_layer(name, config_of, tokens, tmp_path, random_model):
    config = config_of(name)
    check(shape.with_windows(config, [None] * 3), tokens, tmp_path / "m", random_model)


@pytest.mark.parametrize("kept", ["full", "windowed"])
def test_gemma_3_with_layers_of_one_kind(kept, config_of, tokens, tmp_path, random_model):
    # A layer brings the RoPE of its kind along.
    config = config_of("gemma3")
    layers = [la for la in config.layers if (la.attention.window is None) == (kept == "full")]
    config = dataclasses.replace(config, layers=(layers[0],) * 3)
    check(config, tokens, tmp_path / "m", random_model)


@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3"])
def test_a_mixture_without_a_layer_of_experts(name, config_of, tokens, tmp_path, random_model):
    config = config_of(name)
    dense = next(la for la in config.layers if not hasattr(la.mlp, "top_k"))
    config = dataclasses.replace(config, layers=(dense, dense))
    check(config, tokens, tmp_path / "m", random_model)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_a_mixture_without_a_shared_block(name, config_of, tokens, tmp_path, random_model):
    config = config_of(name, n_shared_experts=0)
    assert config.layers[-1].mlp.shared is None
    check(config, tokens, tmp_path / "m", random_model)


def test_gemma_3_caps_no_score(config_of, tokens, tmp_path, random_model):
    """transformers reads the key and does not apply it."""
    config = config_of("gemma3", attn_logit_softcapping=0.5)
    opened = check(config, tokens, tmp_path / "m", random_model)
    assert opened.attn_logit_softcapping == 0.5


@pytest.mark.parametrize("flag", [True, False])
def test_gpt_2_keeps_its_flag_for_scores(flag, config_of, tokens, tmp_path, random_model):
    config = config_of("gpt2", reorder_and_upcast_attn=flag)
    opened = check(config, tokens, tmp_path / "m", random_model)
    assert opened.reorder_and_upcast_attn is flag


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3-moe"])
def test_qwen_windows_without_their_keys(name, built):
    """Defaults of transformers: 4096 positions, and from layer 28 on in the dense families."""
    config, keys = built(name).config, {"use_sliding_window": True, "num_hidden_layers": 30}
    theirs = type(config)(**keys)
    windows = [4096] * 30 if name == "qwen3-moe" else [None] * 28 + [4096] * 2
    assert theirs.sliding_window == 4096
    assert getattr(theirs, "max_window_layers", 28) == 28
    values = config.to_dict() | keys | {"architectures": [type(built(name)).__name__]}
    for key in ("sliding_window", "max_window_layers", "layer_types"):
        values.pop(key, None)
    ours = parse(values, allow=tuple(values))
    assert [la.attention.window for la in ours.layers] == windows
