# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Model families: builders, config.json readers and writers, and tables of tensor names."""

from dovetail_models.families import (
    bert,
    deepseek_v2,
    deepseek_v3,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    qwen2,
    qwen3,
    qwen3_moe,
    siglip,
    siglip_text,
    siglip_vision,
    vit,
)
from dovetail_models.tables.table import Family

# Families by the `model_type` of config.json.
FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
    "deepseek_v2": deepseek_v2.FAMILY,
    "deepseek_v3": deepseek_v3.FAMILY,
    "gemma": gemma.FAMILY,
    "gemma2": gemma2.FAMILY,
    "gemma3_text": gemma3.FAMILY,
    "gpt2": gpt2.FAMILY,
    "gpt_oss": gpt_oss.FAMILY,
    "llama": llama.FAMILY,
    "mistral": mistral.FAMILY,
    "mixtral": mixtral.FAMILY,
    "qwen2": qwen2.FAMILY,
    "qwen3": qwen3.FAMILY,
    "qwen3_moe": qwen3_moe.FAMILY,
    "siglip": siglip.FAMILY,
    "siglip_text_model": siglip_text.FAMILY,
    "siglip_vision_model": siglip_vision.FAMILY,
    "vit": vit.FAMILY,
}
