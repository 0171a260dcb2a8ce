# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail_stack` is the command `dovetail`."""

import sys

from dovetail_stack.cli import main

sys.exit(main())
