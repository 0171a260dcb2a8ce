# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What Optax lacks for training at scale, as gradient transformations for any Optax loop."""

from dovetail_optim.route import route as route
