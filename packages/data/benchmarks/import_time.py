# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to import dovetail_data, against JAX and Grain alone, and in addition to Grain."""

from measure import imports

if __name__ == "__main__":
    imports("dovetail_data", "jax")
    imports("dovetail_data", "grain")
    imports("grain, dovetail_data, dovetail_data.batching.iterator", "grain")
