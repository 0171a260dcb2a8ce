# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2: latent attention over many small experts, one block of which is shared (2405.04434).

Quirks: the rope key is shared by all heads and its pairs are interleaved; YaRN's `mscale_all_dim`
alters the scale of scores; the first k layers are dense; the chosen weights are not divided by
their sum; with `group_limited_greedy` a token goes to the groups with the best single experts.
"""

import dataclasses
from typing import Any

from dovetail_models.config import Config, Experts, Groups, LatentAttention, Norm
from dovetail_models.families import deepseek, shape
from dovetail_models.hf.rope import read_rope
from dovetail_models.hf.table import Family, Keys

_GREEDY, _LIMITED = "greedy", "group_limited_greedy"


def deepseek_v2(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    attention: LatentAttention,
    mlp: int,
    experts: Experts,
    dense: int = 1,
    norm_eps: float = 1e-6,
    tie: bool = False,
    max_length: int = 163_840,
    init_std: float = 0.02,
) -> Config:
    """The configuration of a DeepSeek-V2 of `depth` layers, of which the first `dense` have one
    block of `mlp` units and the others a mixture. The published models have
    `Rope(interleaved=True)` and `Experts(normalise=False)`.
    """
    return Config(
        family="deepseek_v2",
        vocab_size=vocab_size,
        embed=embed,
        layers=deepseek.layers(attention, experts, depth=depth, dense=dense, mlp=mlp),
        norm=Norm(eps=norm_eps),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["DeepseekV2ForCausalLM"])
    keys.expect("scoring_func", "softmax")
    # transformers reads this key and never uses it.
    keys.expect("norm_topk_prob", False)
    rope = dataclasses.replace(read_rope(keys), interleaved=True)
    method = keys.take("topk_method", _GREEDY)
    if method not in (_GREEDY, _LIMITED):
        raise ValueError(
            f"topk_method must be {_GREEDY!r} or {_LIMITED!r}, got topk_method={method!r}. "
            "No module here computes another; use the library that wrote the file."
        )
    groups = None
    if method == _LIMITED:
        count, top_k = shape.count(keys, "n_group"), shape.count(keys, "topk_group")
        groups = Groups(count=count, top_k=top_k, score="max")
    return deepseek_v2(
        **deepseek.read_sizes(keys, rope=rope, max_length=2048),
        experts=deepseek.read_experts(keys, scale=1.0, normalise=False, groups=groups),
    )


def _write(config: Config) -> dict[str, Any]:
    block = next(la.mlp for la in config.layers if isinstance(la.mlp, Experts))
    keys = {
        "architectures": ["DeepseekV2ForCausalLM"],
        **deepseek.write_sizes(config),
        "mlp_bias": False,
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "topk_method": _GREEDY if block.groups is None else _LIMITED,
    }
    if block.groups is not None:
        keys |= {"n_group": block.groups.count, "topk_group": block.groups.top_k}
    return keys


FAMILY = Family(
    read=_read,
    write=_write,
    table=deepseek.TABLE,
    layouts=(deepseek.FUSED,),
    # Without a limit on groups these two alter nothing.
    inert=deepseek.INERT | {"n_group", "topk_group"},
    tied=shape.TIED,
)
