# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Modules by type of configuration."""

from typing import TypeAlias

from flax import nnx

from dovetail_models.config import Config
from dovetail_models.decoder import Decoder
from dovetail_models.encoder import TextEncoder
from dovetail_models.encoder_config import DualConfig, TextConfig, VisionConfig
from dovetail_models.vision import DualEncoder, VisionEncoder

AnyConfig: TypeAlias = Config | TextConfig | VisionConfig | DualConfig
AnyModel: TypeAlias = Decoder | TextEncoder | VisionEncoder | DualEncoder


def build(config: AnyConfig, *, rngs: nnx.Rngs) -> AnyModel:
    """Builds the module of a configuration, with fresh parameters."""
    if isinstance(config, Config):
        return Decoder(config, rngs=rngs)
    if isinstance(config, TextConfig):
        return TextEncoder(config, rngs=rngs)
    if isinstance(config, VisionConfig):
        return VisionEncoder(config, rngs=rngs)
    return DualEncoder(config, rngs=rngs)
