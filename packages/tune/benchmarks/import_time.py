# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to import dovetail_tune with flax and optax, over those alone."""

from measure import imports

BELOW = "jax, flax.nnx, optax"

if __name__ == "__main__":
    imports(f"{BELOW}, dovetail_tune", BELOW, peer="jax, flax, optax")
