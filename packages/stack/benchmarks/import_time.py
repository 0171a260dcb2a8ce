# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds to import the command and the recipes, against JAX alone."""

from measure import imports

if __name__ == "__main__":
    imports("dovetail_stack.cli", "jax")
    imports("dovetail_stack.recipes.language_model, dovetail_stack.recipes.engine", "jax")
