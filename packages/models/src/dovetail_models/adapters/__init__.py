# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters in the place of linear layers."""
