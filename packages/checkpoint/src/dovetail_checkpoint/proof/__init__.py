# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Proof of a step: names, digests, the manifest, checksums, and what all processes agree on."""
