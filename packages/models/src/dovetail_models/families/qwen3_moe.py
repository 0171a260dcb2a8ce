# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen 3 with a mixture of experts: Qwen 3's attention and 128 small experts (2505.09388).

Quirks: The selected weights are divided by their sum only with `norm_topk_prob`. The layers in
`mlp_only_layers` are dense, and so are all but each `decoder_sparse_step`-th. Experts are stored
apart or fused.
"""

from dovetail_models.config.decoder import Config
from dovetail_models.config.layer import Experts, Mlp
from dovetail_models.config.rope import Scaling
from dovetail_models.families import shape
from dovetail_models.tables.config_json import Key, Keys, Values, count
from dovetail_models.tables.table import Family, experts

_APART, _FUSED = experts(
    "model.layers.{i}.mlp.gate", shape.PROJECTIONS, stacked="model.layers.{i}.mlp.experts.{e}"
)
_REST = (*shape.OUTER, *shape.NORMS, *shape.ATTENTION, *shape.QK_NORMS)


@shape.builder
def qwen3_moe(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    experts: int = 128,
    top_k: int = 8,
    normalise: bool = True,
    dense: tuple[int, ...] = (),
    dense_mlp: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = 128,
    window: int | None = None,
    rope_theta: float = 1_000_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-6,
    tie: bool = False,
    attention_bias: bool = False,
    max_length: int = 32_768,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a Qwen 3 mixture of experts with `depth` layers.

    Args:
        mlp: Hidden units of an expert.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `head_dim` is odd, `top_k` exceeds `experts`, or `dense` comes without `dense_mlp`.

    Example:

        >>> sizes = {"vocab_size": 64, "embed": 16, "depth": 2, "heads": 4, "mlp": 32}
        >>> config = qwen3_moe(dense=(0,), dense_mlp=64, **sizes)
        >>> [type(layer.mlp).__name__ for layer in config.layers]
        ['Mlp', 'Experts']
    """
    return shape.Shape(family="qwen3_moe", qk_norm=True, **locals()).config()


def _more(keys: Keys, values: Values) -> Values:
    step = count(keys, "decoder_sparse_step", required=False) or 1
    listed = keys.take("mlp_only_layers", [])
    window = shape.read_window(keys, default=4096)
    # transformers 4 wrote num_experts, 5 writes num_local_experts.
    old = count(keys, "num_experts", required=False)
    experts = count(keys, "num_local_experts", required=old is None) or old
    if old not in (None, experts):
        raise ValueError(
            "num_experts and num_local_experts must be the same, got num_experts="
            f"{old}, num_local_experts={experts}. Remove the wrong one from config.json."
        )
    return {
        "experts": experts,
        "dense": tuple(i for i in range(values["depth"]) if i in listed or (i + 1) % step),
        "window": window if keys.take("use_sliding_window", False) else None,
    }


def _also(config: Config) -> Values:
    block, window = shape.first_experts(config), shape.first_window(config)
    return {
        "num_experts": block.count,
        "num_local_experts": block.count,
        "moe_intermediate_size": block.hidden,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, la in enumerate(config.layers) if isinstance(la.mlp, Mlp)],
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=qwen3_moe,
        own=(Key("moe_intermediate_size", "mlp"), Key("intermediate_size", "dense_mlp")),
        fixed=shape.architectures("Qwen3Moe") | shape.SILU,
        expected={"use_qk_norm": (True,)},
        unread=("experts", "window"),
        absent={"max_length": 32_768},
        more=_more,
        also=_also,
    ),
    table=(*_REST, *shape.MLP, *_APART),
    layouts=((*_REST, *shape.MLP, *_FUSED),),
    tied=shape.TIED,
    blocks=(Mlp, Experts),
)
