# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to import dovetail_profile with JAX, over JAX alone."""

from measure import imports

if __name__ == "__main__":
    imports("jax, dovetail_profile", "jax")
