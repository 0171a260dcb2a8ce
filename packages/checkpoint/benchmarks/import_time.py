# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to import dovetail_checkpoint with what it stands on, over that alone."""

from measure import imports

BELOW = "jax, orbax.checkpoint.experimental.v1"

if __name__ == "__main__":
    imports(f"{BELOW}, dovetail_checkpoint", BELOW, peer="jax, orbax-checkpoint")
