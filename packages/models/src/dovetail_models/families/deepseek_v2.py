# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2: latent attention, many small experts and a shared block (2405.04434).

Quirks: All heads share the rope key, and its pairs are interleaved. YaRN's `mscale_all_dim` changes
the scale of the scores. The first k layers are dense. The selected weights are not divided by their
sum. With `group_limited_greedy` a token goes to the groups with the best single experts.
"""

from typing import Any

from dovetail_models.config import Config, LatentAttention, Norm
from dovetail_models.families import deepseek, shape
from dovetail_models.hf.table import Family, Keys
from dovetail_models.layer_config import Experts, Groups, Mlp

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
    """Returns the configuration of a DeepSeek-V2 with `depth` layers.

    Args:
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        attention: Latent attention of every layer. The published models have
            `Rope(interleaved=True)`.
        mlp: Hidden units of a dense block.
        experts: Mixture of the other layers. The published models have `Experts(normalise=False)`.
        dense: Number of leading layers with one dense block instead of the mixture.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size or rate is not positive.

    Example:

        >>> from dovetail_models import Experts, LatentAttention, Rope
        >>> ranks = {"q_rank": None, "kv_rank": 8, "nope_dim": 8, "rope_dim": 4, "v_dim": 8}
        >>> attention = LatentAttention(heads=4, rope=Rope(theta=1e4, interleaved=True), **ranks)
        >>> experts = Experts(count=8, top_k=2, hidden=8, shared=16, normalise=False)
        >>> sizes = {"vocab_size": 64, "embed": 16, "depth": 2, "mlp": 32, "dense": 1}
        >>> config = deepseek_v2(attention=attention, experts=experts, **sizes)
        >>> [type(layer.mlp).__name__ for layer in config.layers]
        ['Mlp', 'Experts']
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
    keys.expect("architectures", ["DeepseekV2ForCausalLM"], ["DeepseekV2Model"])
    keys.expect("scoring_func", "softmax")
    # transformers reads this key and never uses it.
    keys.expect("norm_topk_prob", False)
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
        **deepseek.read_sizes(keys, interleaved=True, max_length=2048, dense=0),
        experts=deepseek.read_experts(keys, scale=1.0, normalise=False, groups=groups),
    )


def _write(config: Config) -> dict[str, Any]:
    block = shape.first_experts(config)
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
    # Without a limit on groups these two have no effect.
    inert=deepseek.INERT | {"n_group", "topk_group"},
    tied=shape.TIED,
    attention=LatentAttention,
    blocks=(Mlp, Experts),
)
