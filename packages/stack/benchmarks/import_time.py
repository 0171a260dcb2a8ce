# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to import the command and the recipes, against JAX alone."""

from measure import imports

if __name__ == "__main__":
    imports("dovetail.cli", "jax")
    imports("dovetail.recipes.language_model, dovetail.recipes.generation", "jax")
