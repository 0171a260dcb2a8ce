# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""ViT: a class token, then an image's patches as tokens (2010.11929).

Quirks: The position table covers the class token too. A classifier reads this token after the final
norm, and then there is no pooler. The pooler is the tanh of this token, and files may lack it.
Names begin with `vit.` in files with a classifier. Dropout, a training option in config.json, is
not computed here.
"""

from typing import Any

from dovetail_models.config.encoder import TokenPool, VisionConfig
from dovetail_models.config.layer import Activation
from dovetail_models.families import tower
from dovetail_models.tables.config_json import Key, Keys, Values, count
from dovetail_models.tables.ops import Conv, Lead
from dovetail_models.tables.table import SAME, Family, Row, Table, in_layers, linear

_LINEAR = {
    "attention.attention.query": "attn.q",
    "attention.attention.key": "attn.k",
    "attention.attention.value": "attn.v",
    "attention.output.dense": "attn.o",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
}
_LAYER = "encoder.layer.{i}."
_NORMS = {"layernorm_before": "attn_norm", "layernorm_after": "mlp_norm"}
_BODY: Table = (
    Row("embeddings.cls_token", "class_token", Lead(2)),
    Row("embeddings.position_embeddings", "positions.embedding", Lead(1)),
    Row("embeddings.patch_embeddings.projection.weight", "patch.kernel", Conv()),
    Row("embeddings.patch_embeddings.projection.bias", "patch.bias", SAME),
    *in_layers(_LINEAR, theirs=_LAYER),
    *in_layers(_NORMS, row=tower.norm, theirs=_LAYER),
    *tower.norm("layernorm", "norm"),
)
_PLAIN: Table = (*_BODY, *linear("pooler.dense", "pooler.dense"))
_LABELLED: Table = (*tower.prefixed("vit.", _BODY), *linear("classifier", "classifier"))


@tower.builder
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
        channels: Channels of an image.
        pooler: Width of the pooled vector. None: no pooler.
        labels: Names of the classes. Empty: no classifier.

    Raises:
        ValueError: A size or rate is not positive, `heads` does not divide `embed`, or `patch`
            exceeds a side of the image.

    Example:

        >>> config = vit(image_size=8, patch=4, embed=16, depth=2, heads=4, mlp=32)
        >>> config.grid, config.length
        ((2, 2), 5)
    """
    given: dict[str, Any] = {**locals()}
    given["pooler"] = None if pooler is None else TokenPool(width=pooler)
    if isinstance(image_size, int):
        given["image_size"] = (image_size, image_size)
    return tower.config(VisionConfig, "vit", class_token=True, **given)


def _more(keys: Keys, values: Values) -> Values:
    kind = keys.take("architectures", ["ViTModel"])
    if kind not in (["ViTModel"], ["ViTForImageClassification"]):
        raise ValueError(
            "config.json key 'architectures' must be ['ViTModel'] or ['ViTForImageClassification']"
            f", got architectures={kind!r}. Save the model as one of these."
        )
    width = count(keys, "pooler_output_size", required=False) or values["embed"]
    labelled = kind == ["ViTForImageClassification"]
    pooled = keys.take("add_pooling_layer", True) and not labelled
    labels = _read_labels(keys) if labelled else ()
    return {"pooler": width if pooled else None, "labels": labels}


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


def _side(pair: tuple[int, int]) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else list(pair)


def _also(config: VisionConfig) -> Values:
    architecture, end = "ViTModel", tower.write_pooler(config)
    if config.labels:
        architecture = "ViTForImageClassification"
        end = {
            "id2label": {str(i): name for i, name in enumerate(config.labels)},
            "label2id": {name: i for i, name in enumerate(config.labels)},
        }
    width = config.pooler.width if isinstance(config.pooler, TokenPool) else config.embed
    return {"architectures": [architecture], "pooler_output_size": width, **end}


FAMILY = Family(
    config_json=tower.encoder_json(
        builder=vit,
        own=(Key("image_size", "image_size", 224, tower.size, _side),),
        fixed={"pooler_act": ("tanh",)},
        absent={"activation": "gelu", "norm_eps": 1e-12},
        more=_more,
        also=_also,
    ),
    table=_PLAIN,
    layouts=(_LABELLED, tower.prefixed("vit.", _PLAIN)),
    inert=tower.INERT | {"encoder_stride"},
    tied=None,
    fit=tower.fit_pooler,
)
