# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SigLIP: a text and an image encoder with comparable pooled vectors (2303.15343).

Quirks, besides those of the two encoders: Each encoder has its own epsilon. Logits are scaled by an
exponential and shifted, for a sigmoid.
"""

import dataclasses
import json

from dovetail_models import _elsewhere
from dovetail_models.config.encoder import DualConfig, TextConfig, VisionConfig
from dovetail_models.families import siglip_text, siglip_vision, tower
from dovetail_models.tables.config_json import ConfigJson, Keys, Values
from dovetail_models.tables.table import SAME, Family, Row, Table

_TABLE: Table = (
    *tower.prefixed("text_model.", siglip_text.TABLE, within="text."),
    *tower.prefixed("vision_model.", siglip_vision.TABLE, within="vision."),
    Row("logit_scale", "logit_scale", SAME),
    Row("logit_bias", "logit_bias", SAME),
)
_TOWERS = {"text": siglip_text.FAMILY, "vision": siglip_vision.FAMILY}


@_elsewhere.family
def siglip(*, text: TextConfig, vision: VisionConfig) -> DualConfig:
    """Returns the configuration of a SigLIP.

    Args:
        text: Text encoder, from `siglip_text`.
        vision: Image encoder, from `siglip_vision`.

    Raises:
        ValueError: The pooled vectors of the two differ in width, or one has no pooler.

    Example:

        >>> from dovetail_models import siglip_text, siglip_vision
        >>> sizes = {"embed": 16, "depth": 2, "heads": 4, "mlp": 32}
        >>> vision = siglip_vision(image_size=8, patch=4, **sizes)
        >>> config = siglip(text=siglip_text(vocab_size=64, **sizes), vision=vision)
        >>> config.text.pooler.width, config.vision.embed
        (16, 16)
    """
    return DualConfig(family="siglip", text=text, vision=vision)


def _more(keys: Keys, values: Values) -> Values:
    towers = {}
    for name, family in _TOWERS.items():
        inner = keys.inner(f"{name}_config")
        inner.expect("model_type", f"siglip_{name}_model")
        for kept in ("dtype", "torch_dtype"):
            inner.take(kept)
        config = family.config_json.read(inner)
        towers[name] = dataclasses.replace(config, extra=inner.extra(family.inert, inner.allow))
    return towers


def _also(config: DualConfig) -> Values:
    towers = {}
    for name, family in _TOWERS.items():
        tower = getattr(config, name)
        keys = family.config_json.write(tower)
        # Only the outer object names a transformers class.
        del keys["architectures"]
        extra = {key: json.loads(text) for key, text in tower.extra}
        towers[f"{name}_config"] = {**extra, "model_type": tower.family, **keys}
    return towers


FAMILY = Family(
    config_json=ConfigJson(
        builder=siglip,
        fixed={"architectures": (["SiglipModel"],)},
        more=_more,
        also=_also,
    ),
    table=_TABLE,
    inert=tower.INERT,
    tied=None,
    buffers=("*embeddings.position_ids",),
)
