# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations of fresh decoders: any family of dovetail_models by a few sizes, or a config.json.

Embeddings are tied and windows are those of the family. A few sizes that a family names and the
command does not follow from the others:

- Heads are `embed / heads` wide, and scores are divided by the square root of that width.
- Rope angles are not scaled, since the model is trained at its own length.
- Gemma 3: of six layers the last sees everything, or the last layer if there are fewer.
- DeepSeek: keys and values have a latent of a quarter of the width, queries have none, as in
  V2-Lite (2405.04434, appendix B). Half of a head's width more is rotated. The first layer is
  dense, and one expert is shared. Experts have no groups. The weights are V3's: scaled by 2.5.
"""

import dataclasses
import difflib
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dovetail_models
from dovetail_data import Tokenizer
from dovetail_models import Config, Experts, Groups, LatentAttention, Rope
from dovetail_models.hf.config import parse
from dovetail_stack.recipes.options import ACTIVE, EXPERTS, MLP, Shape

# Experts as the published models of the two families score them.
_LATENT_EXPERTS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"normalise": False},
    "deepseek_v3": {
        "score": "sigmoid",
        "selection_bias": True,
        "scale": 2.5,
        "groups": Groups(count=1, top_k=1, score="top2"),
    },
}


def decoders() -> dict[str, Callable[..., Config]]:
    """Returns {family: builder} of the decoders in dovetail_models.

    Example:

        >>> sorted(decoders())[:3]
        ['deepseek_v2', 'deepseek_v3', 'gemma']
    """
    builders = _builders().items()
    return {name: b for name, b in builders if typing.get_type_hints(b)["return"] is Config}


def _builders() -> dict[str, Callable[..., Any]]:
    """Returns the builders of all families, those of encoders too."""
    public = {name: getattr(dovetail_models, name) for name in dovetail_models.__all__}
    return {
        name: value
        for name, value in public.items()
        if inspect.isfunction(value) and value.__module__ == f"dovetail_models.families.{name}"
    }


def _builder(family: str) -> Callable[..., Config]:
    """Returns the builder of a family. Raises ValueError for an encoder and an unknown name."""
    known = decoders()
    if family in known:
        return known[family]
    if family in _builders():
        raise ValueError(
            f"family must be one of decoders, got family={family}, an encoder, which predicts no "
            f"next token: pass one of {', '.join(sorted(known))}"
        )
    near = difflib.get_close_matches(family, known, n=1)
    raise ValueError(
        f"family must be one of dovetail_models, got family={family}: "
        + (f"did you mean {near[0]}? " if near else "")
        + f"Pass one of {', '.join(sorted(known))}"
    )


def completed(shape: Shape) -> Shape:
    """Returns the shape with the sizes of its family in place of those that are 0.

    Raises ValueError for an unknown family, an encoder, and a size that the family has no use for.

    Example:

        >>> shape = completed(Shape(family="mixtral"))
        >>> shape.experts, shape.active_experts, shape.expert_mlp, shape.mlp
        (8, 2, 256, 0)
    """
    if shape.config is not None:
        return shape
    assert shape.family is not None  # as `Shape` sets it
    takes = inspect.signature(_builder(shape.family)).parameters
    mixture, active, mlp = "experts" in takes, shape.active_experts or ACTIVE, shape.mlp or MLP
    defaults = {"kv_heads": 1} if "kv_heads" in takes else {}
    if "attention" in takes or not mixture:  # latent attention comes with dense layers too
        defaults["mlp"] = MLP
    if mixture:
        defaults |= {"experts": EXPERTS, "active_experts": ACTIVE, "expert_mlp": mlp // active}
    for name in ("kv_heads", "mlp", "experts", "active_experts", "expert_mlp"):
        if getattr(shape, name) and name not in defaults:
            raise ValueError(
                f"{name} must be an option of the family, got {name}={getattr(shape, name)}, "
                f"family={shape.family}, {_reason(name, mixture=mixture)}"
            )
    if mixture and not shape.expert_mlp and mlp % active:
        raise ValueError(
            f"active_experts must divide the width of a dense layer, got active_experts={active}, "
            f"mlp={mlp}: pass expert_mlp= the width of an expert"
        )
    sizes = {name: getattr(shape, name) or default for name, default in defaults.items()}
    return dataclasses.replace(shape, **sizes)


def _reason(name: str, *, mixture: bool) -> str:
    if name == "kv_heads":
        return "whose heads have keys and values of their own: leave it out"
    if mixture:
        return "whose feed-forward layers are all mixtures: pass expert_mlp= instead"
    return "which is no mixture of experts: leave it out, or pass family=mixtral, for example"


def config_of(
    shape: Shape, *, vocab_size: int, length: int, keys: Mapping[str, Any] | None = None
) -> Config:
    """Returns the configuration of a decoder of this shape. It has no ids of special tokens.

    Args:
        shape: Family and sizes, or a config.json.
        vocab_size: Rows of the embedding.
        length: Length of the training rows.
        keys: Keys of that config.json as read before. None: read it.

    Raises:
        ValueError: Family and sizes do not fit, or the file describes no such decoder.

    Example:

        >>> config = config_of(Shape(family="gemma3", embed=64), vocab_size=512, length=32)
        >>> config.family, config.layers[0].attention.head_dim, config.tie
        ('gemma3_text', 64, True)
    """
    if shape.config is not None:
        keys = read_keys(shape.config) if keys is None else keys
        return described(keys, vocab_size=vocab_size, length=length)
    shape = completed(shape)
    assert shape.family is not None
    builder = _builder(shape.family)
    takes = inspect.signature(builder).parameters
    width = shape.embed // shape.heads
    offered: dict[str, Any] = {
        "vocab_size": vocab_size,
        "embed": shape.embed,
        "depth": shape.depth,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": width,
        "query_scalar": float(width),
        "rope_scaling": None,
        "pattern": min(6, max(2, shape.depth)),
        "tie": True,
        "max_length": length,
        "mlp": shape.mlp or shape.expert_mlp,
    }
    if "attention" in takes:
        offered |= _latent(shape)
    else:
        offered |= {"experts": shape.experts, "top_k": shape.active_experts}
    return builder(**{name: value for name, value in offered.items() if name in takes})


def _latent(shape: Shape) -> dict[str, Any]:
    """Returns the arguments of a family with latent attention."""
    width = shape.embed // shape.heads
    attention = LatentAttention(
        heads=shape.heads,
        q_rank=None,
        kv_rank=-(-shape.embed // 4),
        nope_dim=width,
        rope_dim=2 * -(-width // 4),  # rotated in pairs
        v_dim=width,
        rope=Rope(theta=10_000.0, interleaved=True),
    )
    assert shape.family is not None
    experts = Experts(
        count=shape.experts,
        top_k=shape.active_experts,
        hidden=shape.expert_mlp,
        shared=shape.expert_mlp,
        **_LATENT_EXPERTS[shape.family],
    )
    return {"attention": attention, "experts": experts, "dense": min(1, shape.depth - 1)}


def config_for(
    shape: Shape,
    tokenizer: Tokenizer,
    *,
    length: int,
    vocab_size: int | None = None,
    eos_ids: Sequence[int] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> Config:
    """Returns the configuration of a decoder for a tokenizer.

    The ids that begin and end a text are stored in it, so other programs know when to stop. Ids of
    other special tokens in a config.json are left out: they belong to another vocabulary.

    Args:
        shape: Family and sizes, or a config.json.
        tokenizer: The tokenizer.
        length: Length of the training rows.
        vocab_size: Rows of the embedding, if others than the tokenizer's ids.
        eos_ids: Ids that end a text, if others than the tokenizer's `eos_id`.
        keys: See `config_of`.

    Example:

        >>> from dovetail_data import Bytes
        >>> config_for(Shape(), Bytes(), length=32).extra
        (('bos_token_id', '256'), ('eos_token_id', '257'))
    """
    size = vocab_size or tokenizer.vocab_size
    config = config_of(shape, vocab_size=size, length=length, keys=keys)
    extra = {name: text for name, text in config.extra if not name.endswith("_token_id")}
    eos = tokenizer.eos_id if eos_ids is None else list(eos_ids)
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": eos}
    extra |= {name: json.dumps(value) for name, value in ids.items()}
    return dataclasses.replace(config, extra=tuple(sorted(extra.items())))


def read_keys(path: str | Path) -> dict[str, Any]:
    """Returns the keys of a config.json, or of the one in a directory.

    Raises ValueError unless the file is there and holds a JSON object.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        keys = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(keys, dict):
            raise ValueError(f"it holds a {type(keys).__name__}")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"a model is described by the JSON object of a config.json, got {str(file)!r} "
            f"({error}): pass --config the file that transformers writes, or its directory"
        ) from error
    return keys


def described(keys: Mapping[str, Any], *, vocab_size: int, length: int) -> Config:
    """Returns the configuration of a config.json with another vocabulary.

    Args:
        keys: Its keys.
        vocab_size: Rows of the embedding, instead of the file's.
        length: Length of the training rows.

    Raises:
        ValueError: The file describes no decoder, or fewer positions than `length`.
    """
    config = parse({**keys, "vocab_size": vocab_size})
    if not isinstance(config, Config):
        raise ValueError(
            f"a language model is a decoder, got a config.json with model_type="
            f"{keys['model_type']!r}, an encoder, which predicts no next token: pass that of one "
            f"of {', '.join(sorted(decoders()))}"
        )
    if length > config.max_length:
        raise ValueError(
            f"rows must fit the {config.max_length} positions that the config.json names, got "
            f"length={length}: pass length={config.max_length}, or edit a copy of the file"
        )
    return config


def is_mixture(config: Config) -> bool:
    """Tests whether a layer is a mixture of experts."""
    return any(isinstance(layer.mlp, Experts) for layer in config.layers)


def check_experts(config: Config, *, ways: int) -> None:
    """Raises ValueError unless the experts of every mixture divide among `ways` groups of devices.

    Experts that do not divide would lie on all of them, whole.
    """
    for layer in config.layers:
        if isinstance(layer.mlp, Experts) and layer.mlp.count % ways:
            count = layer.mlp.count
            divisors = ", ".join(str(i) for i in range(1, count + 1) if count % i == 0)
            raise ValueError(
                f"the {count} experts of a layer must divide among the devices of their axis, got "
                f"expert={ways}: pass one of {divisors}"
            )
