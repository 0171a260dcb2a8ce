# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of tensors and keys between a family and its Hugging Face directory."""
