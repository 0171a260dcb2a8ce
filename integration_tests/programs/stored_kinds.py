# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The keys of kinds.py of dovetail-train, in a Store: stored_kinds.py DIR."""

import kinds

from dovetail_checkpoint import Store

KINDS = [
    "dropout",
    "rbg",
    "unsafe_rbg",
    "forked",
    "keys",
    "no_keys",
    "raw_key",
    "dict",
    "committed",
]

if __name__ == "__main__":
    kinds.main(Store, KINDS)
