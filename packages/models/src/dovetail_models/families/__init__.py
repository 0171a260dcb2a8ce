# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The families: for each a builder, its config.json both ways, and its table of tensor names."""

from dovetail_models.families import llama, qwen3
from dovetail_models.hf.table import Family

FAMILIES: dict[str, Family] = {"llama": llama.FAMILY, "qwen3": qwen3.FAMILY}
