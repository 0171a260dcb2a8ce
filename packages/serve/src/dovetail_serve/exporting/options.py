# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of `export`, before any work."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from dovetail_serve._patterns import select
from dovetail_serve.bundle.arrays import stored_dtype
from dovetail_serve.types import (
    BYTES,
    HostFunction,
    Platform,
    Tensor,
    check_name,
    is_integer,
)

# Batch sizes of inputs with a batch axis, unless the caller gives others.
BATCH_SIZES = (1, 8, 64)


def check_inputs(inputs: Mapping[str, Tensor]) -> None:
    """Checks the inputs: tensors that a bundle can hold, all or none with a batch axis.

    Raises:
        TypeError: A dtype is unknown to `jax.export` or safetensors.
        ValueError: A tensor is of bytes or too wide, or some have a batch axis and others none.
    """
    for name, tensor in inputs.items():
        check_name(name, "an input")
        if tensor.dtype == BYTES:
            raise ValueError(
                f"inputs of fn must be arrays of JAX, got {name!r} of bytes; "
                "give before=HostFunction(...), whose tensors may be bytes"
            )
        check_width(f"the input {name!r}", tensor.dtype)
        stored_dtype(tensor.dtype, f"the input {name!r}")
    if len({tensor.batched for tensor in inputs.values()}) != 1:
        raise ValueError(
            "inputs must not be empty, and all or none must have the axis 'batch', got "
            f"inputs={dict(inputs)!r}; bind a constant input with functools.partial"
        )


def check_width(owner: str, dtype: str) -> None:
    """Raises ValueError for a 64-bit dtype, unless JAX has 64-bit types enabled."""
    narrower = jax.dtypes.canonicalize_dtype(dtype).name
    if narrower != dtype:
        raise ValueError(
            f"{owner} must have a dtype that JAX keeps, got dtype={dtype!r}, which JAX truncates "
            f"unless 64-bit types are enabled; write dtype={narrower!r}, or call export inside "
            "`with jax.enable_x64(True):`"
        )


def check_batch_sizes(batch_sizes: Any, *, batched: bool) -> tuple[int, ...]:
    """Checks the numbers of rows, and returns them; none without a batch axis.

    Raises:
        TypeError: They are no sequence of integers.
        ValueError: They do not ascend from 1, or are given for inputs without a batch axis.
    """
    if isinstance(batch_sizes, int | np.integer):
        raise TypeError(
            f"batch_sizes must be a sequence of integers, got batch_sizes={batch_sizes}; write "
            f"batch_sizes=({batch_sizes},)"
        )
    given = () if batch_sizes is None else tuple(batch_sizes)
    if not batched:
        if given:
            raise ValueError(
                "inputs without the axis 'batch' must have no batch sizes, got "
                f"batch_sizes={given}; leave batch_sizes out, or write inputs as "
                "Tensor(('batch', ...), dtype)"
            )
        return ()
    if not all(is_integer(size) for size in given):
        raise TypeError(
            f"batch_sizes must be integers, got batch_sizes={given}; write batch_sizes=(1, 8, 64)"
        )
    sizes = BATCH_SIZES if batch_sizes is None else tuple(map(int, given))
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
        raise ValueError(
            f"batch_sizes must ascend from 1, got batch_sizes={sizes}; write batch_sizes=(1, 8, 64)"
        )
    return sizes


def check_functions(*functions: HostFunction | None, batched: bool) -> None:
    """Raises ValueError unless host functions have a batch axis as `inputs` do, or none."""
    expected = "the axis 'batch' like" if batched else "no axis 'batch', as"
    advice = "Tensor(('batch',), 'bytes')" if batched else "Tensor((1,), 'bytes')"
    for function in functions:
        if function and any(tensor.batched != batched for tensor in function.tensors.values()):
            raise ValueError(
                f"tensors of the host function {function.name!r} must have {expected} the inputs, "
                f"got {dict(function.tensors)!r}; write {advice}"
            )


def check_call(fn: Callable[..., Any], inputs: Mapping[str, Tensor]) -> None:
    """Raises ValueError unless `fn(params, **inputs)` fits the signature of `fn`."""
    try:
        signature = inspect.signature(fn)
    except ValueError:  # a function of C without a signature; the trace calls it
        return
    try:
        signature.bind(None, **dict.fromkeys(inputs))
    except TypeError as error:
        raise ValueError(
            "fn must take params first and each input by its name, got a function of "
            f"{signature} for inputs={list(inputs)}: {error}; write "
            f"def fn(params, *, {', '.join(inputs)})"
        ) from error


def check_weights(arrays: Mapping[str, Any]) -> None:
    """Checks each weight: a bundle can hold it, and JAX keeps its dtype.

    Raises:
        TypeError: A dtype is unknown to safetensors.
        ValueError: A 64-bit weight while 64-bit types are disabled.
    """
    for name, array in arrays.items():
        stored_dtype(np.dtype(array.dtype).name, f"the weight {name!r}")
        check_width(f"the weight {name!r}", np.dtype(array.dtype).name)


def as_platforms(platforms: Any) -> list[Platform]:
    """Returns platforms given by name or with options. Raises TypeError for a single one."""
    if isinstance(platforms, str | Platform):
        raise TypeError(
            f"platforms must be a sequence, got platforms={platforms!r}; write "
            f"platforms=({platforms!r},)"
        )
    return [p if isinstance(p, Platform) else Platform(name=p) for p in platforms]


def check_platforms(platforms: Sequence[Platform], arrays: Mapping[str, Any]) -> None:
    """Checks that platforms differ, that their layouts fit the weights, and this one's options.

    Args:
        platforms: The platforms.
        arrays: Weights by name.

    Raises:
        ValueError: A platform comes twice, a pattern matches no weight, an order of axes is not
            a permutation, or the compiler refuses an option for this machine's platform.
    """
    names = [platform.name for platform in platforms]
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"platforms must name each platform once, got platforms={names}; write "
            'platforms=("cpu", "cuda")'
        )
    for platform in platforms:
        for pattern, order in platform.layouts.items():
            for name in select(pattern, arrays):
                axes = tuple(range(np.ndim(arrays[name])))
                if sorted(order) != list(axes):
                    raise ValueError(
                        f"a layout must be a permutation of the weight's axes, got {pattern!r}: "
                        f"{tuple(order)} for {name!r} of {len(axes)} axes; write "
                        f"{{{name!r}: {axes}}} for the order that NumPy uses"
                    )
        _check_compiler_options(platform)


def _check_compiler_options(platform: Platform) -> None:
    """Compiles a trivial program with the options: XLA alone knows their names and values."""
    options: Any = dict(platform.compiler_options)
    if not options or platform.name != jax_export.default_export_platform():
        return
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"compiler_options must be known to jaxlib {version('jaxlib')} on {platform.name!r}, "
            f"got {options}: {str(error).splitlines()[0]}; leave the option out"
        ) from error


def check_provenance(provenance: Mapping[Any, Any]) -> None:
    """Raises TypeError unless names and values are texts."""
    for name, value in provenance.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"provenance must map texts to texts, got {name!r}: {value!r}; write "
                f"provenance={{{str(name)!r}: {str(value)!r}}}"
            )


def check_limit(limit_s: float) -> None:
    """Raises ValueError unless a limit of time is above 0."""
    if not 0 < limit_s < math.inf:
        raise ValueError(
            f"limit_s must be seconds above 0, got limit_s={limit_s}; leave it out for a minute"
        )
