# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""y = x w for one to four rows on a CPU, in the C++ of the wheel dovetail-kernels-cpu.

The wheel does not depend on JAX: it is a shared library with one XLA FFI handler. The first call
that could use it imports and registers it, on the CPU platform only. `jax.ffi` takes no cost for a
call, so XLA counts none: `explain` has its FLOPs and bytes.
"""

import ctypes
import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail_kernels.mesh import varying
from dovetail_kernels.quantized import blocks, split
from dovetail_kernels.quantized.layout import PackedWeights
from dovetail_kernels.quantized.rows import restored, rounded

ABI = 1  # version of the handler's arguments and weight layout; the wheel reports its own
ROWS = 4  # most rows of its kernels
WIDTH = 16  # weights in one of its vectors: groups, and half groups of 4 bits, are whole vectors
BEST = (
    -1
)  # the level of instructions: the best that the processor has; 0 portable, 1 AVX2, 2 AVX-512

_MODULE = "dovetail_kernels_cpu"
_TARGET = f"dovetail_kernels_matmul_{ABI}"


@functools.cache
def unavailable() -> str | None:
    """Registers the handler once per process. Returns None, or the reason why it cannot."""
    if importlib.util.find_spec(_MODULE) is None:
        return (
            "dovetail-kernels-cpu is not installed; in a checkout: pip install "
            "packages/kernels/native"
        )
    path = importlib.import_module(_MODULE).LIBRARY
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the library of dovetail-kernels-cpu does not load: {error}"
    abi = library.dovetail_kernels_cpu_abi()
    if abi != ABI:
        older = "dovetail-kernels-cpu" if abi < ABI else "dovetail-kernels"
        return (
            f"dovetail-kernels-cpu has ABI {abi}, this needs {ABI}: pip install --upgrade {older}"
        )
    handler = jax.ffi.pycapsule(library.dovetail_kernels_cpu_matmul)
    jax.ffi.register_ffi_target(_TARGET, handler, platform="cpu")
    return None


def run(x: Array, packed: PackedWeights, *, activations: str | None) -> Array:
    """Computes y[M, F] = x[M, D] w[D, F], M at most 4.

    Args:
        x: Activations [M, D].
        packed: The weights.
        activations: "int8" rounds the rows of x to 8 bits. None keeps them.
    """
    rows, steps = rounded(x, activations=activations)
    return restored(_product(rows, packed), steps, x.dtype)


@jax.custom_batching.custom_vmap
def _product(rows: Array, packed: PackedWeights) -> Array:
    # The handler is registered for CPUs alone. A program that `jax.export` lowers for other
    # platforms, from a trace on a CPU, has jnp's product there.
    return jax.lax.platform_dependent(rows, packed, cpu=call, default=_in_jnp)


def _in_jnp(rows: Array, packed: PackedWeights) -> Array:
    best = split if packed.groups == 1 and packed.in_features <= split.LONGEST else blocks
    return best.run(rows, packed, activations=None)


@_product.def_vmap
def _batched(
    size: int, batched: Sequence[Any], rows: Array, packed: PackedWeights
) -> tuple[Array, bool]:
    """Merges rows for the same weights into one product.

    Products with other weights run one after the other.
    """
    x_batched, weights_batched = batched
    if any(jax.tree.leaves(weights_batched)):
        each = (rows, packed)
        whole = jax.tree.map(
            lambda a, is_batched: a if is_batched else jnp.repeat(a[None], size, axis=0),
            each,
            (x_batched, weights_batched),
        )
        return jax.lax.map(lambda pair: _product(*pair), whole), True
    merged = rows.reshape(size * rows.shape[1], rows.shape[2])
    y = _product(merged, packed) if merged.shape[0] <= ROWS else _in_jnp(merged, packed)
    return y.reshape(size, rows.shape[1], -1), True


def call(rows: Array, packed: PackedWeights, *, level: int = BEST) -> Array:
    """Calls the handler.

    Args:
        rows: Activations float32[M, D].
        packed: The weights.
        level: Instruction level: 0 portable, 1 AVX2, 2 AVX-512, -1 the processor's best.

    Returns:
        The product, float32[M, F].
    """
    absent = jnp.zeros((0, 0), jnp.float32)
    result = jax.ShapeDtypeStruct((rows.shape[0], packed.out_features), jnp.float32)
    y = jax.ffi.ffi_call(_TARGET, result)(
        rows,
        packed.values,
        absent if packed.scales is None else packed.scales,
        absent if packed.zeros is None else packed.zeros.astype(jnp.float32),
        bits=np.int32(packed.bits),
        level=np.int32(level),
    )
    return varying(y, rows, packed)  # a foreign call's result varies nowhere
