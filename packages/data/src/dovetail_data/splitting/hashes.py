# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers that decide a split."""

import hashlib


def fraction_of(content: bytes) -> float:
    """Returns a number in [0, 1) that depends only on `content`."""
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "big") / 2**48


def check_share(share: float) -> None:
    """Raises ValueError unless a share lies in (0, 1)."""
    if not 0 < share < 1:
        raise ValueError(f"share must lie between 0 and 1: got share={share}. Pass share=0.05.")
