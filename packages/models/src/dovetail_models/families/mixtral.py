# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Mixtral: Mistral with a mixture of experts in every layer (2401.04088).

Quirks: The router's softmax runs over all experts, and the selected weights are divided by their
sum. Experts are named w1, w3 and w2 (gate, up, down), or fused under `mlp.experts`.
"""

from dovetail_models.config.decoder import Config
from dovetail_models.config.layer import Experts
from dovetail_models.config.rope import Scaling
from dovetail_models.families import shape
from dovetail_models.tables.table import Family, experts

_BLOCK = "model.layers.{i}.block_sparse_moe"
_APART, _ = experts(
    f"{_BLOCK}.gate", {"gate": "w1", "up": "w3", "down": "w2"}, stacked=_BLOCK + ".experts.{e}"
)
_, _FUSED = experts("model.layers.{i}.mlp.gate", {}, stacked="model.layers.{i}.mlp.experts.{e}")
_REST = (*shape.OUTER, *shape.NORMS, *shape.ATTENTION)


@shape.builder
def mixtral(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    experts: int = 8,
    top_k: int = 2,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    rope_theta: float = 1_000_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-5,
    tie: bool = False,
    max_length: int = 32_768,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a Mixtral with `depth` equal layers.

    Args:
        mlp: Hidden units of an expert.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `top_k` exceeds `experts`, `head_dim` is odd, or it is None and `heads` does not divide
            `embed`.

    Example:

        >>> config = mixtral(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.layers[0].mlp.count, config.layers[0].mlp.top_k
        (8, 2)
    """
    return shape.Shape(family="mixtral", **locals()).config()


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=mixtral,
        # Jitter: noise on the router's input while training.
        fixed=shape.architectures("Mixtral") | shape.SILU | {"router_jitter_noise": (0.0,)},
        absent={"max_length": 131_072, "rope_theta": 1e6, "norm_eps": 1e-5},
    ),
    table=(*_REST, *_APART),
    layouts=((*_REST, *_FUSED),),
    tied=shape.TIED,
    blocks=(Experts,),
)
