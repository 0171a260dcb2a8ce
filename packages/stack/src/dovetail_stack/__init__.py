# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The Dovetail stack: recipes that join its libraries, and the command `dovetail`.

    >>> from dovetail_stack.recipes.families import config_of
    >>> from dovetail_stack.recipes.language_model import pretraining
    >>> from dovetail_stack.recipes.options import Shape, Training
    >>> config = config_of(Shape(family="mixtral", embed=64), vocab_size=512, length=64)
    >>> recipe = pretraining(config, Training(length=64))

`dovetail_stack.recipes` lists the recipes. Each is a module of short functions, to be called or
copied. `dovetail --help` lists the commands.
"""

from importlib.metadata import version as _version

__all__: list[str] = []  # the recipes are modules: import from them

__version__ = _version("dovetail-stack")
