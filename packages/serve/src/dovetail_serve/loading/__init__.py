# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loading: a bundle becomes a callable model on this machine's devices."""
