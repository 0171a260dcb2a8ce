# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A small decoder and tokenizer, the decoder's float64 oracle, and the contract of decoders."""

from dovetail_infer.testing.contract import check_decoder
from dovetail_infer.testing.decoder import TinyDecoder, TinyLayer, causal_attention
from dovetail_infer.testing.drive import Driven, drive, options
from dovetail_infer.testing.oracle import whole_logits
from dovetail_infer.testing.sampling import check_sampling
from dovetail_infer.testing.step import traceable_step
from dovetail_infer.testing.tokenizer import ByteTokenizer

__all__ = [
    "ByteTokenizer",
    "Driven",
    "TinyDecoder",
    "TinyLayer",
    "causal_attention",
    "check_decoder",
    "check_sampling",
    "drive",
    "options",
    "traceable_step",
    "whole_logits",
]
