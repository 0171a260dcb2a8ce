# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""GPT-2: pre-norm blocks, learned positions, LayerNorm and ungated GELU (Radford 2019).

Quirks: Weights are stored [in, out], unlike in every other family. q, k and v lie side by side in
one tensor. Names may lack the prefix `transformer.`, and files may hold the causal mask. Dropout, a
training option in config.json, is not computed here.
"""

from typing import Any

from dovetail_models.config.decoder import Config
from dovetail_models.families import shape, tower
from dovetail_models.tables.config_json import ANY, ConfigJson, Key
from dovetail_models.tables.ops import Identity, Slice
from dovetail_models.tables.table import TURN, Family, Row, Table, linear

_SAME = Identity()
_FUSED: Table = tuple(
    Row(f"h.{{i}}.attn.c_attn.{theirs}", f"layers.{{i}}.attn.{name}.{ours}", Slice(i, 3, -1))
    for i, name in enumerate("qkv")
    for theirs, ours in (("weight", "kernel"), ("bias", "bias"))
)
_TABLE: Table = (
    Row("wte.weight", "embed.embedding", _SAME),
    Row("wpe.weight", "positions.embedding", _SAME),
    *tower.norm("ln_f", "norm"),
    Row("lm_head.weight", "lm_head.kernel", TURN),
    *tower.norm("h.{i}.ln_1", "layers.{i}.attn_norm"),
    *_FUSED,
    *linear("h.{i}.attn.c_proj", "layers.{i}.attn.o", op=_SAME),
    *tower.norm("h.{i}.ln_2", "layers.{i}.mlp_norm"),
    *linear("h.{i}.mlp.c_fc", "layers.{i}.mlp.up", op=_SAME),
    *linear("h.{i}.mlp.c_proj", "layers.{i}.mlp.down", op=_SAME),
)


@tower.builder
def gpt2(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int | None = None,
    norm_eps: float = 1e-5,
    tie: bool = True,
    max_length: int = 1024,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a GPT-2 with `depth` equal layers.

    Args:
        mlp: Hidden units of a feed-forward block. None: `4 * embed`.
        max_length: Number of learned positions, and so the longest sequence in tokens.

    Raises:
        ValueError: A size or rate is not positive, or `heads` does not divide `embed`.

    Example:

        >>> config = gpt2(vocab_size=64, embed=16, depth=2, heads=4)
        >>> config.layers[0].mlp.hidden, config.learned_positions
        (64, True)
    """
    given: dict[str, Any] = locals() | {"mlp": mlp or 4 * embed}
    return tower.config(Config, "gpt2", activation="gelu_tanh", learned_positions=True, **given)


_KEYS = (
    Key("vocab_size", "vocab_size"),
    Key("n_embd", "embed"),
    Key("n_layer", "depth"),
    Key("n_head", "heads"),
    Key("n_inner", "mlp", None),
    Key("layer_norm_epsilon", "norm_eps", 1e-5, ANY),
    Key("tie_word_embeddings", "tie", True, ANY),
    Key("n_positions", "max_length", 1024),
    Key("initializer_range", "init_std", 0.02, ANY),
)
FAMILY = Family(
    config_json=ConfigJson(
        builder=gpt2,
        keys=_KEYS,
        fixed={
            "architectures": (["GPT2LMHeadModel"], ["GPT2Model"]),
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        arguments=shape.arguments,
    ),
    table=_TABLE,
    prefix="transformer.",
    # It upcasts scores to float32, as every attention here does.
    inert=frozenset({"reorder_and_upcast_attn"}),
    tied=("lm_head.weight", "wte.weight"),
    rope=False,
    buffers=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),
)
