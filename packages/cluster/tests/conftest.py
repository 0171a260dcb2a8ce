# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: types checked at run time."""

import jaxtyping

# Before the first import of the package, so that every annotation of it is checked.
jaxtyping.install_import_hook("dovetail_cluster", "beartype.beartype")
