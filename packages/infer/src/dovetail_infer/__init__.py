# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An LLM inference engine for any JAX decoder."""

from dovetail_infer.completion import Completion, Kept, QueueFull, Tokens, TopLogprobs
from dovetail_infer.sampling import Sampling
from dovetail_infer.types import Decoder, Operations, Tokenizer

__all__ = [
    "Completion",
    "Decoder",
    "Kept",
    "Operations",
    "QueueFull",
    "Sampling",
    "Tokenizer",
    "Tokens",
    "TopLogprobs",
]
