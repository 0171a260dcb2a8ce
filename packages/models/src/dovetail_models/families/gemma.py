# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma: Llama's block with GeGLU and wide heads (2403.08295).

Quirks: Norms store their scale minus 1 and multiply in float32. Token vectors are multiplied by √D,
rounded to their dtype (55.5 for D = 3072 in bfloat16). The GELU is the tanh approximation, even if
config.json says "gelu". The output head is the embedding.
"""

from typing import Any

from dovetail_models.config.decoder import Config, Norm
from dovetail_models.config.rope import Scaling
from dovetail_models.families import shape
from dovetail_models.tables.table import Family

GELU = "gelu_pytorch_tanh"
# What the arguments of Gemma 1 to 3 do not say.
GEMMA: dict[str, Any] = {
    "norm": Norm(unit_offset=True, wide=True),
    "activation": "gelu_tanh",
    "scaled": True,
}
FIXED = {"attention_dropout": (0.0,), "attention_bias": (False,)}


@shape.builder
def gemma(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    kv_heads: int | None = None,
    head_dim: int = 256,
    rope_theta: float = 10_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-6,
    tie: bool = True,
    max_length: int = 8192,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a Gemma with `depth` equal layers.

    Args:
        head_dim: Width of a head; even.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`, or
            `head_dim` is odd.

    Example:

        >>> config = gemma(vocab_size=64, embed=16, depth=2, heads=4, mlp=32, head_dim=8)
        >>> config.embed_scale
        4.0
    """
    return shape.Shape(family="gemma", **GEMMA, **locals()).config()


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=gemma,
        fixed=shape.architectures("Gemma") | {"hidden_act": (GELU, "gelu")} | FIXED,
        expected={"hidden_activation": (GELU,), "use_bidirectional_attention": (False,)},
        absent={"max_length": 8192, "head_dim": 256, "tie": True},
        also=lambda config: {"use_bidirectional_attention": None},
    ),
    table=shape.TABLE,
    tied=shape.TIED,
)
