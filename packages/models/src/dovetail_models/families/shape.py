# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Common code of the Llama-like families: tensor names, config.json keys and equal layers."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dovetail_models.config import Attention, Config, Layer
from dovetail_models.hf.ops import Identity, Slice, Transpose
from dovetail_models.hf.rope import read_rope, write_rope
from dovetail_models.hf.table import Keys, Row, Table
from dovetail_models.layer_config import Experts, Mlp

SAME, TURN = Identity(), Transpose()
FULL, SLIDING = "full_attention", "sliding_attention"
TIED = ("lm_head.weight", "model.embed_tokens.weight")


def linear(theirs: str, ours: str) -> Table:
    """Returns the rows of a torch `Linear`; the bias is optional."""
    return Row(f"{theirs}.weight", f"{ours}.kernel", TURN), Row(
        f"{theirs}.bias", f"{ours}.bias", SAME
    )


def norm(theirs: str, ours: str) -> Table:
    """Returns the row of an RMS norm."""
    return (Row(f"{theirs}.weight", f"{ours}.scale", SAME),)


_NO_EXPERTS = Experts(count=2, top_k=1, hidden=1, shared=1)
_THEIRS, _OURS = "model.layers.{i}.", "layers.{i}."
OUTER: Table = (
    Row("model.embed_tokens.weight", "embed.embedding", SAME),
    *norm("model.norm", "norm"),
    Row("lm_head.weight", "lm_head.kernel", TURN),
)
ATTENTION: Table = tuple(
    row
    for name in "qkvo"
    for row in linear(f"{_THEIRS}self_attn.{name}_proj", f"{_OURS}attn.{name}")
)
QK_NORMS: Table = tuple(
    row
    for name in "qk"
    for row in norm(f"{_THEIRS}self_attn.{name}_norm", f"{_OURS}attn.{name}_norm")
)
NORMS: Table = (
    *norm(f"{_THEIRS}input_layernorm", f"{_OURS}attn_norm"),
    *norm(f"{_THEIRS}post_attention_layernorm", f"{_OURS}mlp_norm"),
)
MLP: Table = tuple(
    row
    for name in ("gate", "up", "down")
    for row in linear(f"{_THEIRS}mlp.{name}_proj", f"{_OURS}mlp.{name}")
)
TABLE: Table = (*OUTER, *NORMS, *ATTENTION, *MLP)


def experts(router: str, names: dict[str, str], *, stacked: str) -> tuple[Table, Table]:
    """Returns two table layouts of a mixture of experts.

    The first has one torch `Linear` per expert and projection. The second has two tensors for all
    experts: [E, 2 F, D] with gate before up, and [E, D, F].

    Args:
        router: Tensor name of the router, without `.weight`.
        names: File name of each projection, by ours (gate, up, down).
        stacked: Tensor prefix of an expert, with `{e}` for its index.
    """
    mlp = f"{_OURS}mlp."
    both = stacked.replace(".{e}", "")
    gate = Row(f"{router}.weight", f"{mlp}router.kernel", TURN)
    apart = tuple(
        Row(f"{stacked}.{theirs}.weight", f"{mlp}experts.{ours}.kernel", TURN)
        for ours, theirs in names.items()
    )
    fused = (
        Row(f"{both}.gate_up_proj", f"{mlp}experts.gate.kernel", Slice(0, 2, -2, TURN)),
        Row(f"{both}.gate_up_proj", f"{mlp}experts.up.kernel", Slice(1, 2, -2, TURN)),
        Row(f"{both}.down_proj", f"{mlp}experts.down.kernel", TURN),
    )
    return (gate, *apart), (gate, *fused)


def heads(
    embed: int, heads: int, kv_heads: int | None, head_dim: int | None
) -> dict[Literal["heads", "kv_heads", "head_dim"], int]:
    """Returns the head sizes of an `Attention`.

    Args:
        embed: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key-value heads. None: `heads`.
        head_dim: Width of a head. None: `embed // heads`.

    Raises:
        ValueError: `head_dim` is None and `heads` does not divide `embed`.
    """
    if head_dim is None and embed % heads:
        raise ValueError(
            f"Without head_dim, heads must divide embed, got embed={embed}, heads={heads}. "
            "Pass head_dim=, or change one of them."
        )
    return {
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": embed // heads if head_dim is None else head_dim,
    }


def layers(
    attention: Attention,
    mlp: Mlp | Experts,
    *,
    windows: Sequence[int | None],
    norms: Literal["pre", "sandwich"] = "pre",
) -> tuple[Layer, ...]:
    """Returns one layer per window; all else is equal.

    Args:
        attention: Attention of every layer, except its window.
        mlp: Feed-forward block or mixture of experts of every layer.
        windows: Window of each layer. None: all positions are seen.
        norms: Placement of the norms; see `Layer`.
    """
    return tuple(
        Layer(attention=dataclasses.replace(attention, window=window), mlp=mlp, norms=norms)
        for window in windows
    )


def read_shape(
    keys: Keys,
    *,
    theta: float = 10_000.0,
    scaling: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Reads the arguments of `read_sizes` and one RoPE for all layers.

    Args:
        keys: The keys of config.json.
        theta: Default of `rope_theta`.
        scaling: Scaling of a config.json that names none. None: no scaling.
        **options: Options of `read_sizes`.

    Returns:
        Arguments of the builder by name.

    Raises:
        ValueError: A key is missing or has a wrong value.
    """
    sizes = read_sizes(keys, **options)
    width = sizes["head_dim"] or sizes["embed"] // sizes["heads"]
    options = {"max_length": sizes["max_length"], "width": width, "default": scaling}
    rope = read_rope(keys, default_theta=theta, **options)
    return {**sizes, "rope_theta": rope.theta, "rope_scaling": rope.scaling}


def read_sizes(
    keys: Keys,
    *,
    eps: float = 1e-6,
    tie: bool = False,
    max_length: int,
    head_dim: int | None = None,
    kv_required: bool = True,
) -> dict[str, Any]:
    """Reads the builder arguments common to this shape, except RoPE, from config.json.

    The options are the defaults of transformers for missing keys.

    Args:
        keys: The keys of config.json.
        eps: Default of `rms_norm_eps`.
        tie: Default of `tie_word_embeddings`.
        max_length: Default of `max_position_embeddings`.
        head_dim: Default of `head_dim`.
        kv_required: Require `num_key_value_heads`. Use it for a constant default in transformers,
            since a constant fits few models.

    Returns:
        Arguments of the builder by name.

    Raises:
        ValueError: A key is missing or has a wrong value.
    """
    keys.expect("attention_dropout", 0.0)
    need = functools.partial(count, keys)
    return {
        "vocab_size": need("vocab_size"),
        "embed": need("hidden_size"),
        "depth": need("num_hidden_layers"),
        "heads": need("num_attention_heads"),
        "mlp": need("intermediate_size"),
        "kv_heads": need("num_key_value_heads", required=kv_required),
        "head_dim": need("head_dim", required=False) or head_dim,
        "norm_eps": keys.take("rms_norm_eps", eps),
        "tie": keys.take("tie_word_embeddings", tie),
        "max_length": need("max_position_embeddings", required=False) or max_length,
        "init_std": keys.take("initializer_range", 0.02),
    }


def count(keys: Keys, name: str, *, required: bool = True, least: int = 1) -> Any:
    """Reads a whole number.

    Args:
        keys: The keys of config.json.
        name: The key.
        required: Raise for a missing or null key. Otherwise the result is None.
        least: The least number.

    Raises:
        ValueError: The key is missing and required, or its value is not such a number.
    """
    value = keys.take(name, required=required)
    if value is not None and (type(value) is not int or value < least):
        raise ValueError(
            f"config.json key {name!r} must be a whole number above {least - 1}, got "
            f"{name}={value!r}. Correct config.json."
        )
    return value


def write_shape(config: Config, *, architecture: str, hidden: int) -> dict[str, Any]:
    """Returns the config.json keys common to this shape.

    Args:
        config: The configuration; its first layer has an `Attention` with RoPE.
        architecture: Class name in transformers.
        hidden: Hidden units of a dense feed-forward block.
    """
    attention = config.layers[0].attention
    assert isinstance(attention, Attention)
    assert attention.rope is not None
    return {
        "architectures": [architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed,
        "intermediate_size": hidden,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm.eps,
        "tie_word_embeddings": config.tie,
        "attention_dropout": 0.0,
        "initializer_range": config.init_std,
        **write_rope(attention.rope),
    }


def read_window(keys: Keys, *, default: int | None) -> int | None:
    """Reads `sliding_window`: None for null, and `default` for a missing key."""
    if "sliding_window" not in keys:
        return default
    return count(keys, "sliding_window", required=False)


def read_windows(
    keys: Keys, depth: int, *, window: int | None, default: Sequence[str]
) -> list[int | None]:
    """Reads the window of each layer from `layer_types`.

    Args:
        keys: The keys of config.json.
        depth: Number of layers.
        window: Window of the sliding layers. None: sliding layers are not allowed.
        default: Kinds of the layers for a missing `layer_types`.

    Returns:
        The windows; None for a full layer.

    Raises:
        ValueError: The number of kinds is not `depth`, or a kind is not allowed.
    """
    kinds = keys.take("layer_types") or list(default)
    allowed = {FULL} if window is None else {FULL, SLIDING}
    if len(kinds) != depth or not set(kinds) <= allowed:
        raise ValueError(
            f"layer_types must hold one of {sorted(allowed)} per layer, got layer_types={kinds} "
            f"for num_hidden_layers={depth} and sliding_window={window}. Correct config.json."
        )
    return [window if kind == SLIDING else None for kind in kinds]


def kinds(config: Config) -> list[str]:
    """Returns the value of `layer_types`."""
    return [FULL if la.attention.window is None else SLIDING for la in config.layers]


def first_window(config: Config) -> int | None:
    """Returns the window of the first windowed layer, or None."""
    return next((la.attention.window for la in config.layers if la.attention.window), None)


def first_experts(config: Config) -> Experts:
    """Returns the first mixture of experts.

    The first layers of a mixture may all be dense. transformers still needs sizes of experts to
    open such a model; these are of no layer.
    """
    blocks = (la.mlp for la in config.layers)
    return next((b for b in blocks if isinstance(b, Experts)), _NO_EXPERTS)


def with_kinds(keys: Keys, config: Config, *, window: int | None) -> Config:
    """Returns `config` with the windows of `layer_types`, if config.json has that key.

    Args:
        keys: The keys of config.json.
        config: The configuration.
        window: Window of the sliding layers. None: sliding layers are not allowed.

    Raises:
        ValueError: `layer_types` does not fit the layers.
    """
    windows = read_windows(keys, len(config.layers), window=window, default=kinds(config))
    return with_windows(config, windows)


def all_full(keys: Keys, config: Config) -> Config:
    """Returns `config`, after reading a `layer_types` of full layers alone if it has no window.

    Raises:
        ValueError: `layer_types` names another kind.
    """
    return config if first_window(config) else with_kinds(keys, config, window=None)


def with_windows(config: Config, windows: Sequence[int | None]) -> Config:
    """Returns `config` with these windows, one per layer."""
    layers = tuple(
        dataclasses.replace(la, attention=dataclasses.replace(la.attention, window=w))
        for la, w in zip(config.layers, windows, strict=True)
    )
    return dataclasses.replace(config, layers=layers)
