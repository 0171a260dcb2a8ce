# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to import dovetail_models with what it stands on, over that alone."""

from measure import imports

BELOW = "jax, flax.nnx"

if __name__ == "__main__":
    imports(f"{BELOW}, dovetail_models", BELOW, peer="jax, flax")
