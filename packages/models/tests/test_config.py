# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from dovetail_models import (
    Attention,
    Experts,
    Groups,
    LatentAttention,
    Layer,
    LinearScaling,
    Llama3Scaling,
    Mlp,
    Norm,
    Rope,
    YarnScaling,
    llama,
    qwen3,
)

ROPE = Rope(theta=100.0)
EXTRA = tuple((name, "1") for name in "abcde")


def _groups(count, score="max"):
    return Groups(count=count, top_k=1, score=score)


def test_configs_are_values():
    options = {"vocab_size": 8, "embed": 6, "depth": 2, "heads": 3, "mlp": 5}
    assert llama(**options) == llama(**options)
    assert hash(llama(**options)) == hash(llama(**options))
    assert llama(**options) != llama(**options, tie=True)
    assert qwen3(**options).layers[0].attention.qk_norm


def test_a_repr_has_each_kind_of_layer_once():
    options = {"vocab_size": 8, "embed": 6, "heads": 3, "mlp": 5}
    assert repr(llama(**options, depth=40, max_length=7)) == (
        "Config(family='llama', vocab_size=8, embed=6, norm=Norm(), tie=False, max_length=7, "
        "layers:\n  40 x Layer(attention=Attention(heads=3, kv_heads=3, head_dim=2, "
        "rope=Rope(theta=10000.0)), mlp=Mlp(hidden=5)))"
    )
    kinds = tuple(llama(**options, depth=1).layers[0] for _ in range(2))
    others = tuple(dataclasses.replace(kinds[0], mlp=Mlp(hidden=i)) for i in range(6, 16))
    config = dataclasses.replace(llama(**options, depth=1), layers=(*kinds, *others), extra=EXTRA)
    first, *lines = repr(config).splitlines()
    assert "extra=(5 values), layers:" in first
    assert lines[0].startswith("  2 x Layer(")
    assert (len(lines), lines[-1]) == (7, "  ... 5 more kinds)")


@pytest.mark.parametrize(
    "make, parts",
    [
        (
            lambda: Attention(heads=6, kv_heads=4, head_dim=2, rope=ROPE),
            ["kv_heads must divide heads", "heads=6, kv_heads=4", "kv_heads=(1, 2, 3, 6)"],
        ),
        (
            lambda: Attention(heads=6, kv_heads=3, head_dim=5, rope=ROPE),
            ["head_dim must be even", "head_dim=5", "Use head_dim=6"],
        ),
        (
            lambda: Attention(heads=2, kv_heads=1, head_dim=4, rope=ROPE, window=0),
            ["Attention.window must be positive", "window=0", "Pass window="],
        ),
        (
            lambda: Mlp(hidden=-3),
            ["Mlp.hidden must be positive", "hidden=-3", "Pass hidden="],
        ),
        (
            lambda: LatentAttention(
                heads=2, q_rank=None, kv_rank=3, nope_dim=2, rope_dim=3, v_dim=2, rope=ROPE
            ),
            ["rope_dim must be even", "rope_dim=3", "Use rope_dim=4"],
        ),
        (
            lambda: Experts(count=6, top_k=2, hidden=3, groups=_groups(4)),
            ["Groups.count must divide Experts.count", "4 groups for count=6", "(1, 2, 3, 6)"],
        ),
        (
            lambda: Experts(count=6, top_k=4, hidden=3, groups=_groups(3)),
            ["at most the experts of the chosen groups", "top_k=4 with 1 groups of 2", "smaller"],
        ),
        (
            lambda: Experts(count=4, top_k=1, hidden=3, groups=_groups(4, score="top2")),
            ["'top2' need two experts each", "groups of 1", "fewer groups"],
        ),
        (
            lambda: Groups(count=2, top_k=3, score="max"),
            ["Groups.top_k must be at most count", "top_k=3, count=2", "Use top_k=2"],
        ),
        (
            lambda: YarnScaling(factor=4.0, original_length=16, beta_fast=1.0, beta_slow=1.0),
            ["beta_fast must be above beta_slow", "beta_fast=1.0", "Use beta_fast=32, beta_slow=1"],
        ),
        (lambda: LinearScaling(factor=float("nan")), ["must be positive", "factor=nan", "Pass"]),
        (lambda: Norm(eps=0.0), ["Norm.eps must be positive", "eps=0.0", "Pass eps="]),
        (lambda: Rope(theta=-1.0), ["Rope.theta must be positive", "theta=-1.0", "Pass theta="]),
        (
            lambda: Llama3Scaling(
                factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0, original_length=32
            ),
            ["must be above low_freq_factor", "high_freq_factor=4.0", "Use high_freq_factor=4.0"],
        ),
        (
            lambda: llama(vocab_size=8, embed=6, depth=0, heads=3, mlp=5),
            ["at least one layer", "layers=()", "depth=1"],
        ),
        (
            lambda: llama(vocab_size=8, embed=7, depth=1, heads=3, mlp=5),
            ["heads must divide embed", "embed=7, heads=3", "Pass head_dim="],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused(make, parts):
    with pytest.raises(ValueError, match="got") as error:
        make()
    for part in parts:
        assert part in str(error.value)


def test_a_layer_can_be_changed_by_hand():
    base = llama(vocab_size=8, embed=6, depth=3, heads=3, mlp=5)
    wide = Layer(attention=base.layers[0].attention, mlp=Mlp(hidden=11))
    other = dataclasses.replace(base, layers=(*base.layers[:2], wide))
    assert [layer.mlp.hidden for layer in other.layers] == [5, 5, 11]
