# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to import dovetail_kernels, against JAX alone, and against both that it needs."""

from measure import imports

if __name__ == "__main__":
    imports("dovetail_kernels", "jax")
    imports("dovetail_kernels", "jax, jaxtyping")
