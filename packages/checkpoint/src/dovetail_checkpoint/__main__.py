# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail_checkpoint` is the command of cli.py."""

import sys

import jax

from dovetail_checkpoint.cli import main

# All is read to the host: an accelerator would be taken from the run that is looked into.
jax.config.update("jax_platforms", "cpu")
sys.exit(main())
