# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""GPT-2: pre-norm blocks, learned positions, LayerNorm and ungated GELU (Radford 2019).

Quirks: Weights are stored [in, out], unlike in every other family. q, k and v lie side by side in
one tensor. Names may lack the prefix `transformer.`, and files may hold the causal mask. Dropout, a
training option in config.json, is not computed here.
"""

from typing import Any

from dovetail_models.config import Attention, Config, Layer, Norm
from dovetail_models.families import shape
from dovetail_models.hf.ops import Identity, Slice
from dovetail_models.hf.table import Family, Keys, Row, Table
from dovetail_models.layer_config import Mlp

_SAME = Identity()


def _conv(theirs: str, ours: str) -> Table:
    return Row(f"{theirs}.weight", f"{ours}.kernel", _SAME), Row(
        f"{theirs}.bias", f"{ours}.bias", _SAME
    )


def _norm(theirs: str, ours: str) -> Table:
    return Row(f"{theirs}.weight", f"{ours}.scale", _SAME), Row(
        f"{theirs}.bias", f"{ours}.bias", _SAME
    )


_FUSED: Table = tuple(
    Row(f"h.{{i}}.attn.c_attn.{theirs}", f"layers.{{i}}.attn.{name}.{ours}", Slice(i, 3, -1))
    for i, name in enumerate("qkv")
    for theirs, ours in (("weight", "kernel"), ("bias", "bias"))
)
_TABLE: Table = (
    Row("wte.weight", "embed.embedding", _SAME),
    Row("wpe.weight", "positions.embedding", _SAME),
    *_norm("ln_f", "norm"),
    Row("lm_head.weight", "lm_head.kernel", shape.TURN),
    *_norm("h.{i}.ln_1", "layers.{i}.attn_norm"),
    *_FUSED,
    *_conv("h.{i}.attn.c_proj", "layers.{i}.attn.o"),
    *_norm("h.{i}.ln_2", "layers.{i}.mlp_norm"),
    *_conv("h.{i}.mlp.c_fc", "layers.{i}.mlp.up"),
    *_conv("h.{i}.mlp.c_proj", "layers.{i}.mlp.down"),
)
# Upcasts scores to float32, as every attention here does.
_UPCAST = "reorder_and_upcast_attn"


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
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Heads per layer; a divisor of `embed`.
        mlp: Hidden units of a feed-forward block. None: `4 * embed`.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        max_length: Number of learned positions, and so the longest sequence in tokens.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size or rate is not positive, or `heads` does not divide `embed`.

    Example:

        >>> config = gpt2(vocab_size=64, embed=16, depth=2, heads=4)
        >>> config.layers[0].mlp.hidden, config.learned_positions
        (64, True)
    """
    attention = Attention(
        **shape.heads(embed, heads, None, None), rope=None, qkv_bias=True, out_bias=True
    )
    block = Mlp(hidden=mlp or 4 * embed, activation="gelu_tanh", gated=False, bias=True)
    return Config(
        family="gpt2",
        vocab_size=vocab_size,
        embed=embed,
        layers=(Layer(attention=attention, mlp=block),) * depth,
        norm=Norm(kind="layer", eps=norm_eps),
        tie=tie,
        max_length=max_length,
        learned_positions=True,
        init_std=init_std,
    )


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["GPT2LMHeadModel"], ["GPT2Model"])
    keys.expect("activation_function", "gelu_new", "gelu_pytorch_tanh")
    keys.expect("scale_attn_weights", True)
    keys.expect("scale_attn_by_inverse_layer_idx", False)
    keys.expect("add_cross_attention", False)
    return gpt2(
        vocab_size=shape.count(keys, "vocab_size"),
        embed=shape.count(keys, "n_embd"),
        depth=shape.count(keys, "n_layer"),
        heads=shape.count(keys, "n_head"),
        mlp=shape.count(keys, "n_inner", required=False),
        norm_eps=keys.take("layer_norm_epsilon", 1e-5),
        tie=keys.take("tie_word_embeddings", True),
        max_length=shape.count(keys, "n_positions", required=False) or 1024,
        init_std=keys.take("initializer_range", 0.02),
    )


def _write(config: Config) -> dict[str, Any]:
    layer = config.layers[0]
    assert isinstance(layer.attention, Attention)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_embd": config.embed,
        "n_layer": len(config.layers),
        "n_head": layer.attention.heads,
        "n_inner": layer.mlp.hidden,
        "n_positions": config.max_length,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm.eps,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tie,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=_TABLE,
    prefix="transformer.",
    inert=frozenset({_UPCAST}),
    tied=("lm_head.weight", "wte.weight"),
    rope=False,
    buffers=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),
)
