# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Custom calls of a program, checked before it is compiled.

A custom call runs native code of this process by name. jaxlib's callbacks into Python take the
address of an object from the program, so a forged one could end the process or do worse. Others
check their arguments, but only those that JAX promises to keep are meant for stored programs.
"""

import functools
from typing import Any

import jax
from jax import export as jax_export
from jax.extend.mlir import ir

from dovetail_serve.errors import BundleError
from dovetail_serve.exporting.refusals import is_callback


def check_custom_calls(lowered: jax.stages.Lowered, *, file: str, pinned: bool) -> None:
    """Checks the targets of all custom calls of a program, on every platform it is for.

    Args:
        lowered: The program, not yet compiled.
        file: Its file in the bundle.
        pinned: Whether the bundle needs this version of jaxlib. Then it may make other custom calls
            than those JAX promises to keep, as `export(custom_calls=...)` writes them.

    Raises:
        BundleError: It calls back into Python, or makes a custom call that is not allowed.
    """
    for target in sorted(_targets(lowered)):
        if is_callback(target):
            raise BundleError(
                f"{file} must not call back into Python, since a bundle holds no code, got the "
                f"custom call {target!r}; export the bundle again, with before=HostFunction(...) "
                "for work on the host"
            )
        if not pinned and not _promised(target):
            raise BundleError(
                f"{file} must make no custom calls but those that jax.export promises to keep, got "
                f"{target!r}; export it again with custom_calls=({target!r},)"
            )


def _targets(lowered: jax.stages.Lowered) -> set[str]:
    targets = set()

    def visit(operation: Any) -> ir.WalkResult:
        # Of any dialect: XLA converts mhlo.custom_call like stablehlo.custom_call.
        if operation.name.endswith(".custom_call"):
            targets.add(operation.attributes["call_target_name"].value)
        return ir.WalkResult.ADVANCE

    module: Any = lowered.compiler_ir("stablehlo")
    module.operation.walk(visit)
    return targets


@functools.cache
def _promised(target: str) -> bool:
    """Whether `jax.export` of this version promises to keep a custom call. JAX has no list to read.

    It refuses to export a call of any other target. The call is never run.
    """
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((), "float32"))
    try:
        jax_export.export(jax.jit(lambda: call()), platforms=("cpu",))()
    except ValueError:
        return False
    return True
