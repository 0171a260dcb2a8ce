# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_models import llama, qwen3
from dovetail_models.hf.config import describe, parse

BASE = qwen3(vocab_size=7, embed=4, depth=4, heads=2, mlp=6)


def windows(config):
    return [layer.attention.window for layer in config.layers]


def test_a_qwen3_is_a_llama_with_normed_heads_of_their_own_width():
    a = BASE.layers[0].attention
    assert (a.head_dim, a.qk_norm, a.rope.theta) == (128, True, 1e6)
    plain = llama(vocab_size=7, embed=4, depth=4, heads=2, mlp=6)
    assert plain.layers[0].attention.head_dim == 2
    assert not plain.layers[0].attention.qk_norm


@pytest.mark.parametrize(
    "keys, sizes",
    [
        ({}, [None] * 4),
        ({"use_sliding_window": False, "sliding_window": 3, "max_window_layers": 1}, [None] * 4),
        (
            {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
            [None, 3, 3, 3],
        ),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 3,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            [3, None, 3, None],
        ),
    ],
)
def test_windows_of_either_convention(keys, sizes):
    values = describe(BASE)
    del values["layer_types"], values["use_sliding_window"]
    config = parse(values | keys)
    assert windows(config) == sizes
    assert describe(config).items() >= keys.items()
    assert parse(describe(config)) == config


@pytest.mark.parametrize(
    "kinds", [["full_attention"], ["sliding_attention"] * 4, ["linear_attention"] * 4]
)
def test_layer_types_that_do_not_fit_are_refused(kinds):
    with pytest.raises(ValueError, match="must hold one of") as error:
        parse(describe(BASE) | {"layer_types": kinds})
    assert f"layer_types={kinds}" in str(error.value)
    assert "Correct config.json" in str(error.value)
