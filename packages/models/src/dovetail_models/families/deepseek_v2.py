# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2: latent attention, many small experts and a shared block (2405.04434).

Quirks: All heads share the rope key, and its pairs are interleaved. YaRN's `mscale_all_dim` changes
the scale of the scores. The first k layers are dense. The selected weights are not divided by their
sum. With `group_limited_greedy` a token goes to the groups with the best single experts.
"""

from dovetail_models.config.decoder import Config, LatentAttention
from dovetail_models.config.layer import Experts, Groups, Mlp
from dovetail_models.families import deepseek, shape
from dovetail_models.tables.config_json import Keys, Values, count
from dovetail_models.tables.table import Family

_GREEDY, _LIMITED = "greedy", "group_limited_greedy"


@shape.builder
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
        attention: Latent attention of every layer. The published models have
            `Rope(interleaved=True)`.
        mlp: Hidden units of a dense block.
        experts: Mixture of the other layers. The published models have `Experts(normalise=False)`.
        dense: Number of leading layers with one dense block instead of the mixture.

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
    return deepseek.config("deepseek_v2", **locals())


def _more(keys: Keys, values: Values) -> Values:
    method = keys.take("topk_method", _GREEDY)
    if method not in (_GREEDY, _LIMITED):
        raise ValueError(
            f"topk_method must be {_GREEDY!r} or {_LIMITED!r}, got topk_method={method!r}. "
            "No module here computes another; use the library that wrote the file."
        )
    groups = None
    if method == _LIMITED:
        n, top_k = count(keys, "n_group"), count(keys, "topk_group")
        groups = Groups(count=n, top_k=top_k, score="max")
    return {
        "attention": deepseek.read_attention(keys, values, interleaved=True),
        "experts": deepseek.read_experts(keys, scale=1.0, normalise=False, groups=groups),
    }


def _also(config: Config) -> Values:
    groups = shape.first_experts(config).groups
    keys = deepseek.write(config) | {"topk_method": _LIMITED if groups else _GREEDY}
    return keys | ({"n_group": groups.count, "topk_group": groups.top_k} if groups else {})


FAMILY = Family(
    config_json=deepseek.config_json(
        builder=deepseek_v2,
        fixed={
            **shape.architectures("DeepseekV2"),
            **shape.SILU,
            "moe_layer_freq": (1,),
            "mlp_bias": (False,),
            "scoring_func": ("softmax",),
            # transformers reads this key and never uses it.
            "norm_topk_prob": (False,),
        },
        absent={"max_length": 2048, "dense": 0},
        more=_more,
        also=_also,
    ),
    table=deepseek.TABLE,
    layouts=(deepseek.FUSED,),
    # Without a limit on groups these two have no effect.
    inert=deepseek.INERT | {"n_group", "topk_group"},
    tied=shape.TIED,
    attention=LatentAttention,
    blocks=(Mlp, Experts),
)
