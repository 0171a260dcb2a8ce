# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail_runs` runs the command of cli.py."""

import sys

from dovetail_runs.command.cli import main

sys.exit(main())
