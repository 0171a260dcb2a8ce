# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The hot programs as XLA compiles them for a GPU that is not here. The bounds only fall.

A launch costs about 3 us, and a wait for the host 40 us (one H100, jax 0.11.2): both are work of
nobody's. `PYTHONPATH=scripts python integration_tests/programs/gpu_programs.py` prints the counts.
"""
