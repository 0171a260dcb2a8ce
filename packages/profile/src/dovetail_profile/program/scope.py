# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The module path that JAX's names of operations hold.

JAX joins the transforms of a function, its scopes (`jax.named_scope`) and the primitive by slashes:

    jit(train_step)/transpose(jvp(layers.0))/attn/jit(_run)/attention/blocked/while/body/dot_general

has the scope `layers.0.attn.attention.blocked`.
"""

import functools
import re

# Names that JAX gives to structure, and no user to a module.
_STRUCTURE = re.compile(
    "while|body|cond|scan|closed_call|eval_jaxpr|rematted_computation|checkpoint|remat|pjit|"
    r"custom_[jv]+p_call|shard_map|branch_\d+_fun|trips=.*|.*->.*"
)
_CALLED = re.compile(r"(jit|pjit|xla_call|custom_jvp|custom_vjp)\((.*)\)")
_TRANSFORM = re.compile(r"\w+\((.*)\)")


@functools.lru_cache(maxsize=65536)
def scope_of(op_name: str) -> str:
    """Returns the scope of an operation, joined by dots. Empty if it has none.

    >>> scope_of("jit(f)/transpose(jvp(layers.0))/mlp/dot_general")
    'layers.0.mlp'
    """
    names: list[str] = []
    for segment in _segments(op_name)[:-1]:  # the last is the primitive
        while not _CALLED.fullmatch(segment) and (inner := _TRANSFORM.fullmatch(segment)):
            segment = inner[1]
        for name in segment.split("/"):
            if name and not _STRUCTURE.fullmatch(name) and not _CALLED.fullmatch(name):
                names.append(name)
    return ".".join(names)


def _segments(op_name: str) -> list[str]:
    """Splits at slashes outside parentheses."""
    segments, depth = [""], 0
    for character in op_name:
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            segments.append("")
        else:
            segments[-1] += character
    return segments
