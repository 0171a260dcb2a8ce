# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""General compressors on the held-out bytes."""

import bz2
import gzip
import lzma


def compressors(data: bytes) -> dict[str, float]:
    """Returns bits per byte of `data` under gzip -9, bzip2 -9 and xz -9, in this order.

    All files form one stream. This favours the compressors: they look back over earlier files (gzip
    32 KiB, bzip2 900 kB, xz 64 MiB), the model only over its own row.

    Raises ValueError for empty data.
    """
    if not data:
        raise ValueError("bits per byte need at least one byte of held-out text, got 0: add text")
    compressed = {
        "gzip": gzip.compress(data, compresslevel=9, mtime=0),
        "bzip2": bz2.compress(data, compresslevel=9),
        "xz": lzma.compress(data, preset=9),
    }
    return {name: 8 * len(out) / len(data) for name, out in compressed.items()}
