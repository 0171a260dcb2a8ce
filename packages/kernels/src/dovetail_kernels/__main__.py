# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail_kernels` runs the command of sweep/cli.py."""

import sys

from dovetail_kernels.sweep.cli import main

sys.exit(main())
