# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3 and R1: V2 with sigmoid routing balanced by a bias (2412.19437).

Quirks: scores are sigmoids; a bias per expert decides who is chosen and does not enter the weight;
a group is as good as its two best experts; weights are divided by their sum and multiplied by 2.5;
files hold fp8 blocks with scales, and a layer for multi-token prediction, which is left out.
"""

import dataclasses
from typing import Any

from dovetail_models.config import Config, Experts, Groups, LatentAttention, Norm
from dovetail_models.families import deepseek, shape
from dovetail_models.hf.rope import read_rope
from dovetail_models.hf.table import Family, Keys, Row

_BIAS = Row(
    "model.layers.{i}.mlp.gate.e_score_correction_bias",
    "layers.{i}.mlp.router.selection_bias",
    shape.SAME,
)


def deepseek_v3(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    attention: LatentAttention,
    mlp: int,
    experts: Experts,
    dense: int = 3,
    norm_eps: float = 1e-6,
    tie: bool = False,
    max_length: int = 163_840,
    init_std: float = 0.02,
) -> Config:
    """The configuration of a DeepSeek-V3 of `depth` layers, of which the first `dense` have one
    block of `mlp` units and the others a mixture. The published models have
    `Rope(interleaved=True)`, and `Experts` with score="sigmoid", selection_bias=True, scale=2.5 and
    8 groups of which 4 are chosen by "top2".
    """
    return Config(
        family="deepseek_v3",
        vocab_size=vocab_size,
        embed=embed,
        layers=deepseek.layers(attention, experts, depth=depth, dense=dense, mlp=mlp),
        norm=Norm(eps=norm_eps),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["DeepseekV3ForCausalLM"])
    keys.expect("scoring_func", "sigmoid")
    keys.expect("topk_method", "noaux_tc")
    rope = read_rope(keys)
    rope = dataclasses.replace(rope, interleaved=keys.take("rope_interleave", True))
    count, top_k = shape.count(keys, "n_group"), shape.count(keys, "topk_group")
    return deepseek_v3(
        **deepseek.read_sizes(keys, rope=rope, max_length=4096),
        experts=deepseek.read_experts(
            keys,
            scale=2.5,
            score="sigmoid",
            normalise=keys.take("norm_topk_prob", True),
            groups=Groups(count=count, top_k=top_k, score="top2"),
            selection_bias=True,
        ),
    )


def _write(config: Config) -> dict[str, Any]:
    layer = next(la for la in config.layers if isinstance(la.mlp, Experts))
    block, attention = layer.mlp, layer.attention
    assert isinstance(block, Experts)
    assert isinstance(attention, LatentAttention)
    groups = block.groups or Groups(count=1, top_k=1, score="top2")
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        **deepseek.write_sizes(config),
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": block.normalise,
        "n_group": groups.count,
        "topk_group": groups.top_k,
        "rope_interleave": attention.rope.interleaved,
    }


def _next_token_layers(config: Config) -> tuple[str, ...]:
    """Layers after the last: they predict further tokens, and generation does without."""
    depth, extra = len(config.layers), dict(config.extra).get("num_nextn_predict_layers", "0")
    return tuple(f"model.layers.{depth + i}.*" for i in range(int(extra)))


FAMILY = Family(
    read=_read,
    write=_write,
    table=(*deepseek.TABLE, _BIAS),
    layouts=((*deepseek.FUSED, _BIAS),),
    inert=deepseek.INERT,
    tied=shape.TIED,
    dropped=_next_token_layers,
)
