# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to import dovetail_serve in addition to JAX, and with its HTTP server."""

from measure import imports

if __name__ == "__main__":
    imports("jax, dovetail_serve", "jax")
    imports("jax, dovetail_serve.http", "jax")
