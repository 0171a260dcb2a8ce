# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The error of damaged files."""


class DamageError(ValueError):
    """A file of a corpus or of a tokenizer is not as it was written."""

    exit_code = 3  # of the command
