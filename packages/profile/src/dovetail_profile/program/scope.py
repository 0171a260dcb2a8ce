# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The module path in JAX's names of operations.

JAX joins transforms, scopes (`jax.named_scope`) and the primitive by slashes:

    jit(train_step)/transpose(jvp(layers.0))/attn/jit(_run)/attention/blocked/while/body/dot_general

has the scope `layers.0.attn.attention.blocked`.
"""

import functools
import re

# Names that JAX gives to structure, and no user to a module.
_STRUCTURE = re.compile(
    "while|body|cond|scan|closed_call|eval_jaxpr|rematted_computation|pjit|"
    r"custom_[jv]+p_call|shard_map|branch_\d+_fun|trips=.*|.*->.*"
)
_CALLED = re.compile(r"(jit|pjit|xla_call|custom_jvp|custom_vjp)\((.*)\)")
_TRANSFORM = re.compile(r"\w+\((.*)\)")
_RECOMPUTED = re.compile("checkpoint|remat2?")


@functools.lru_cache(maxsize=65536)
def scope_of(op_name: str) -> str:
    """Returns the scope of an operation, joined by dots. Empty if it has none.

    >>> scope_of("jit(f)/transpose(jvp(layers.0))/mlp/dot_general")
    'layers.0.mlp'
    """
    names: list[str] = []
    # The compiler joins the names of operations that it merges by semicolons.
    *segments, primitive = _segments(op_name.partition(";")[0])
    for segment in segments:
        while not _CALLED.fullmatch(segment) and (inner := _TRANSFORM.fullmatch(segment)):
            segment = inner[1]
        for name in segment.split("/"):
            if _RECOMPUTED.fullmatch(name):
                names = _without_repeat(names)
            elif name and not _STRUCTURE.fullmatch(name) and not _CALLED.fullmatch(name):
                names.append(name)
    return ".".join(_without_repeat(names) if _RECOMPUTED.fullmatch(primitive) else names)


def _without_repeat(names: list[str]) -> list[str]:
    """Returns names without the second of two equal halves at their end.

    In the backward pass JAX names the scopes around `jax.checkpoint` twice.
    """
    for size in range(len(names) // 2, 0, -1):
        if names[-size:] == names[-2 * size : -size]:
            return names[:-size]
    return names


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
