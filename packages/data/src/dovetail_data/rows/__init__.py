# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random-access rows of a corpus: packed, padded, pairs, prompts, images."""
