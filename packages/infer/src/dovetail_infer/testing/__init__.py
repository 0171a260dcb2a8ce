# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Parts for tests of engines and decoders."""

from dovetail_infer.testing.tokenizer import ByteTokenizer

__all__ = ["ByteTokenizer"]
