# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluation inside the training loop."""

from dovetail_train.eval.bits import BitsPerByte as BitsPerByte
from dovetail_train.eval.bits import Eval as Eval

__all__ = ["BitsPerByte", "Eval"]
