# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing of a corpus: workers, hosts, upload, and repair after an interruption."""
