# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail_profile` runs the command of cli.py."""

import sys

from dovetail_profile.command.cli import main

if __name__ == "__main__":
    sys.exit(main())
