# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SigLIP: a text and an image encoder with comparable pooled vectors (2303.15343).

Quirks, besides those of the two encoders: Each encoder has its own epsilon. Logits are scaled by an
exponential and shifted, for a sigmoid.
"""

import dataclasses
import json
from typing import Any

from dovetail_models.encoder_config import DualConfig, TextConfig, VisionConfig
from dovetail_models.families import shape, siglip_text, siglip_vision, tower
from dovetail_models.hf.table import Family, Keys, Row, Table

_TABLE: Table = (
    *tower.prefixed("text_model.", siglip_text.TABLE, within="text."),
    *tower.prefixed("vision_model.", siglip_vision.TABLE, within="vision."),
    Row("logit_scale", "logit_scale", shape.SAME),
    Row("logit_bias", "logit_bias", shape.SAME),
)
_INNER = {"text": tower.INERT, "vision": siglip_vision.INERT}


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


def _read(keys: Keys) -> DualConfig:
    keys.expect("architectures", ["SiglipModel"])
    towers = {}
    for name, read in (("text", siglip_text.read), ("vision", siglip_vision.read)):
        inner = keys.inner(f"{name}_config")
        inner.expect("model_type", f"siglip_{name}_model")
        for kept in ("dtype", "torch_dtype"):
            inner.take(kept)
        config = read(inner)
        towers[name] = dataclasses.replace(config, extra=inner.extra(_INNER[name], inner.allow))
    return siglip(**towers)


def _write(config: DualConfig) -> dict[str, Any]:
    text = _inner(config.text, siglip_text.write(config.text))
    vision = _inner(config.vision, siglip_vision.write(config.vision))
    return {"architectures": ["SiglipModel"], "text_config": text, "vision_config": vision}


def _inner(config: TextConfig | VisionConfig, keys: dict[str, Any]) -> dict[str, Any]:
    extra = {name: json.loads(text) for name, text in config.extra}
    # Only the outer object names a transformers class.
    del keys["architectures"]
    return {**extra, "model_type": config.family, **keys}


FAMILY = Family(
    read=_read,
    write=_write,
    table=_TABLE,
    inert=tower.INERT,
    tied=None,
    buffers=("*embeddings.position_ids",),
)
