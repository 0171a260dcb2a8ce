# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The Dovetail stack: recipes that join its libraries, and the command `dovetail`."""
