# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3 and R1: V2 with sigmoid routing balanced by a bias (2412.19437).

Quirks: Scores are sigmoids. A bias per expert takes part in the selection but not in the weight.
The selection score of a group is the sum of its two best experts. Weights are divided by their sum
and multiplied by 2.5. Files hold fp8 blocks with scales, and a layer for multi-token prediction;
this layer is left out.
"""

from dovetail_models.config.decoder import Config, LatentAttention
from dovetail_models.config.layer import Experts, Groups, Mlp
from dovetail_models.families import deepseek, shape
from dovetail_models.tables.config_json import Keys, Values, count
from dovetail_models.tables.table import SAME, Family, Row

_BIAS = Row(
    "model.layers.{i}.mlp.gate.e_score_correction_bias",
    "layers.{i}.mlp.router.selection_bias",
    SAME,
)


@shape.builder
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
    """Returns the configuration of a DeepSeek-V3 with `depth` layers.

    Args:
        attention: Latent attention of every layer. The published models have
            `Rope(interleaved=True)`.
        mlp: Hidden units of a dense block.
        experts: Mixture of the other layers. The published models have score="sigmoid",
            selection_bias=True, scale=2.5 and 8 groups; the best 4 by "top2" are selected.
        dense: Number of leading layers with one dense block instead of the mixture.

    Raises:
        ValueError: A size or rate is not positive.

    Example:

        >>> from dovetail_models import Experts, LatentAttention, Rope
        >>> ranks = {"q_rank": None, "kv_rank": 8, "nope_dim": 8, "rope_dim": 4, "v_dim": 8}
        >>> attention = LatentAttention(heads=4, rope=Rope(theta=1e4, interleaved=True), **ranks)
        >>> experts = Experts(count=8, top_k=2, hidden=8, shared=16, score="sigmoid")
        >>> sizes = {"vocab_size": 64, "embed": 16, "depth": 2, "mlp": 32, "dense": 1}
        >>> config = deepseek_v3(attention=attention, experts=experts, **sizes)
        >>> [type(layer.mlp).__name__ for layer in config.layers]
        ['Mlp', 'Experts']
    """
    return deepseek.config("deepseek_v3", **locals())


def _more(keys: Keys, values: Values) -> Values:
    interleaved = keys.take("rope_interleave", True)
    groups = Groups(count=count(keys, "n_group"), top_k=count(keys, "topk_group"), score="top2")
    return {
        "attention": deepseek.read_attention(keys, values, interleaved=interleaved),
        "experts": deepseek.read_experts(
            keys,
            scale=2.5,
            score="sigmoid",
            normalise=keys.take("norm_topk_prob", True),
            groups=groups,
            selection_bias=True,
        ),
    }


def _also(config: Config) -> Values:
    block, attention = shape.first_experts(config), config.layers[0].attention
    assert isinstance(attention, LatentAttention)
    groups = block.groups or Groups(count=1, top_k=1, score="top2")
    return {
        **deepseek.write(config),
        "norm_topk_prob": block.normalise,
        "n_group": groups.count,
        "topk_group": groups.top_k,
        "rope_interleave": attention.rope.interleaved,
    }


def _next_token_layers(config: Config) -> tuple[str, ...]:
    """Returns patterns for the layers after the last; generation does not need them."""
    depth, extra = len(config.layers), dict(config.extra).get("num_nextn_predict_layers", "0")
    return tuple(f"model.layers.{depth + i}.*" for i in range(int(extra)))


FAMILY = Family(
    config_json=deepseek.config_json(
        builder=deepseek_v3,
        fixed={
            **shape.architectures("DeepseekV3"),
            **shape.SILU,
            "moe_layer_freq": (1,),
            "scoring_func": ("sigmoid",),
            "topk_method": ("noaux_tc",),
        },
        expected={"mlp_bias": (False,)},
        absent={"max_length": 4096, "dense": 3},
        more=_more,
        also=_also,
    ),
    table=(*deepseek.TABLE, _BIAS),
    layouts=((*deepseek.FUSED, _BIAS),),
    inert=deepseek.INERT,
    tied=shape.TIED,
    attention=LatentAttention,
    blocks=(Mlp, Experts),
    dropped=_next_token_layers,
)
