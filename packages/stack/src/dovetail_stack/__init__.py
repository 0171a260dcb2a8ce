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

import importlib as _importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

__all__: list[str] = []  # the recipes are modules: import from them

__version__ = _version("dovetail-stack")

# Names of other libraries, with what to write here.
_ELSEWHERE = {
    "train": "dovetail_stack.recipes, or the command dovetail train",
    "generate": "dovetail_infer.Engine, or the command dovetail generate",
    "load": "dovetail_models.load",
}
if not _TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name):
        if name == "recipes":
            return _importlib.import_module("dovetail_stack.recipes")
        advice = f". Use {_ELSEWHERE[name]}." if name in _ELSEWHERE else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")

    def __dir__():
        return ["__version__", "recipes"]
