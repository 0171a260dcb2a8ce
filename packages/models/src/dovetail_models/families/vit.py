# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""ViT: a class token, then an image's patches as tokens (2010.11929).

Quirks: The position table covers the class token too. A classifier reads this token after the final
norm, and then there is no pooler. The pooler is the tanh of this token, and files may lack it.
Names begin with `vit.` in files with a classifier. Dropout, a training option in config.json, is
not computed here.
"""

from typing import Any

from dovetail_models.config import Attention, Norm
from dovetail_models.encoder_config import TokenPool, VisionConfig
from dovetail_models.families import shape, tower
from dovetail_models.hf.ops import Conv, Lead
from dovetail_models.hf.table import Family, Keys, Row, Table
from dovetail_models.layer_config import Activation

_THEIRS, _OURS = "encoder.layer.{i}.", "layers.{i}."
_LINEAR = {
    "attention.attention.query": "attn.q",
    "attention.attention.key": "attn.k",
    "attention.attention.value": "attn.v",
    "attention.output.dense": "attn.o",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
}
_BODY: Table = (
    Row("embeddings.cls_token", "class_token", Lead(2)),
    Row("embeddings.position_embeddings", "positions.embedding", Lead(1)),
    Row("embeddings.patch_embeddings.projection.weight", "patch.kernel", Conv()),
    Row("embeddings.patch_embeddings.projection.bias", "patch.bias", shape.SAME),
    *(r for a, b in _LINEAR.items() for r in shape.linear(_THEIRS + a, _OURS + b)),
    *tower.norm(_THEIRS + "layernorm_before", _OURS + "attn_norm"),
    *tower.norm(_THEIRS + "layernorm_after", _OURS + "mlp_norm"),
    *tower.norm("layernorm", "norm"),
)
_PLAIN: Table = (*_BODY, *shape.linear("pooler.dense", "pooler.dense"))
_LABELLED: Table = (*tower.prefixed("vit.", _BODY), *shape.linear("classifier", "classifier"))


def vit(
    *,
    image_size: int | tuple[int, int],
    patch: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    channels: int = 3,
    activation: Activation = "gelu",
    norm_eps: float = 1e-12,
    qkv_bias: bool = True,
    pooler: int | None = None,
    labels: tuple[str, ...] = (),
    init_std: float = 0.02,
) -> VisionConfig:
    """Returns the configuration of a ViT with `depth` equal layers.

    Args:
        image_size: Side of the square images, or (height, width), in pixels.
        patch: Side of a patch, in pixels.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Heads per layer; a divisor of `embed`.
        mlp: Hidden units of a feed-forward block.
        channels: Channels of an image.
        activation: Activation of the feed-forward blocks.
        norm_eps: Epsilon of the norms.
        qkv_bias: Add biases to the q, k and v projections.
        pooler: Width of the pooled vector. None: no pooler.
        labels: Names of the classes. Empty: no classifier.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size or rate is not positive, `heads` does not divide `embed`, or `patch`
            exceeds a side of the image.

    Example:

        >>> config = vit(image_size=8, patch=4, embed=16, depth=2, heads=4, mlp=32)
        >>> config.grid, config.length
        ((2, 2), 5)
    """
    sizes = {"heads": heads, "mlp": mlp, "activation": activation, "qkv_bias": qkv_bias}
    square = (image_size, image_size) if isinstance(image_size, int) else image_size
    return VisionConfig(
        family="vit",
        image_size=square,
        patch=patch,
        embed=embed,
        layers=tower.layers(embed, depth, norms="pre", **sizes),
        norm=Norm(kind="layer", eps=norm_eps),
        channels=channels,
        class_token=True,
        pooler=None if pooler is None else TokenPool(width=pooler),
        labels=labels,
        init_std=init_std,
    )


def _read(keys: Keys) -> VisionConfig:
    kind = keys.take("architectures", ["ViTModel"])
    if kind not in (["ViTModel"], ["ViTForImageClassification"]):
        raise ValueError(
            "config.json key 'architectures' must be ['ViTModel'] or ['ViTForImageClassification']"
            f", got architectures={kind!r}. Save the model as one of these."
        )
    keys.expect("pooler_act", "tanh")
    sizes = tower.read_sizes(keys, activation="gelu", eps=1e-12)
    width = shape.count(keys, "pooler_output_size", required=False) or sizes["embed"]
    labelled = kind == ["ViTForImageClassification"]
    pooled = keys.take("add_pooling_layer", True) and not labelled
    return vit(
        image_size=tower.read_size(keys, "image_size", 224),
        patch=tower.read_square(keys, "patch_size", 16),
        **sizes,
        channels=shape.count(keys, "num_channels", required=False) or 3,
        qkv_bias=keys.take("qkv_bias", True),
        pooler=width if pooled else None,
        labels=_read_labels(keys) if labelled else (),
        init_std=keys.take("initializer_range", 0.02),
    )


def _read_labels(keys: Keys) -> tuple[str, ...]:
    """Returns the class names in order. Without a key, transformers has two classes."""
    names = keys.take("id2label", {str(i): f"LABEL_{i}" for i in range(keys.take("num_labels", 2))})
    # Written from id2label.
    keys.take("label2id")
    order = [str(i) for i in range(len(names))]
    by_id = {str(i): name for i, name in names.items()}
    if set(by_id) != set(order):
        raise ValueError(
            f"config.json key 'id2label' must number classes from 0 to {len(names) - 1}, got "
            f"numbers {sorted(by_id)[:20]}. Correct config.json."
        )
    return tuple(by_id[i] for i in order)


def _write(config: VisionConfig) -> dict[str, Any]:
    layer, labels = config.layers[0], config.labels
    assert isinstance(layer.attention, Attention)
    names = {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
    }
    width = config.pooler.width if isinstance(config.pooler, TokenPool) else config.embed
    return {
        "architectures": ["ViTForImageClassification" if labels else "ViTModel"],
        **tower.write_sizes(config),
        "image_size": tower.write_size(config.image_size),
        "patch_size": config.patch,
        "num_channels": config.channels,
        "qkv_bias": layer.attention.qkv_bias,
        "pooler_act": "tanh",
        "pooler_output_size": width,
        "initializer_range": config.init_std,
        **(names if labels else tower.write_pooler(config)),
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=_PLAIN,
    layouts=(_LABELLED, tower.prefixed("vit.", _PLAIN)),
    inert=tower.INERT | {"encoder_stride"},
    tied=None,
    fit=tower.fit_pooler,
)
