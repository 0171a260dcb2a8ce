# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors, signatures, platforms and host functions: the values in the description of a bundle."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

# Name of the axis that requests are joined along. Always the first axis.
BATCH = "batch"
# Datatype of texts and byte strings. Only host functions take and return it, as arrays of objects.
BYTES = "bytes"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
# Names of tensors, host functions and files: no separator, no leading dot, at most 128 characters.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
_DTYPE = re.compile(r"[<=|]?[A-Za-z]\w*", re.ASCII)
# Options of XLA that write or read files, such as xla_dump_to, xla_gpu_cuda_data_dir and
# xla_gpu_load_autotune_results_from, or that pass on others: xla_gpu_asm_extra_flags.
_FILES = re.compile(
    r"(^|_)(dir|directory|dump|dump(s|ed|ing)|extra|file|files|filename|flags|folder|path|paths|"
    r"plugin|plugins|url)(_|$)|_(to|from)$"
)
# Values of options that name files nowhere: words, numbers and lists of them.
_PLAIN = re.compile(r"[\w.,:;=+\-*|\[\] ]*", re.ASCII)

Array = np.ndarray | jax.Array
HostCall = Callable[[Mapping[str, np.ndarray], Mapping[str, Path]], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Shape and dtype of an input or an output.

    Args:
        shape: Sizes of the axes. The first one may be "batch": any number of rows.
        dtype: A dtype or its name, such as "float32" or `jnp.bfloat16`; "bytes" for host functions.

    Raises:
        TypeError: The dtype is unknown.
        ValueError: A size is negative, or a name is not "batch" at the first axis.

    Example:

        >>> Tensor(("batch", 224, 224, 3), "float32")
        Tensor(shape=('batch', 224, 224, 3), dtype='float32')
    """

    shape: tuple[int | str, ...]
    dtype: str

    def __post_init__(self) -> None:
        for axis, size in enumerate(self.shape):
            if size == BATCH and axis == 0:
                continue
            if not is_integer(size) or int(size) < 0:
                raise ValueError(
                    f'sizes must be integers from 0, or "{BATCH}" for the first axis, got '
                    f"shape={tuple(self.shape)!r}; write Tensor(({BATCH!r}, 64), 'float32')"
                )
        sizes = tuple(size if isinstance(size, str) else int(size) for size in self.shape)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @property
    def batched(self) -> bool:
        """Whether the first axis counts rows."""
        return self.shape[:1] == (BATCH,)

    def sized(self, rows: Any) -> tuple[Any, ...]:
        """Returns the shape with `rows` in place of "batch": a number, or a symbolic dimension."""
        return tuple(rows if size == BATCH else size for size in self.shape)


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy, and no boolean."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def dtype_name(dtype: Any) -> str:
    """Returns the name of a dtype of JAX, or "bytes". Raises TypeError for others."""
    if isinstance(dtype, str) and dtype == BYTES:
        return BYTES
    try:
        # NumPy reads structures and byte orders from other texts, some by Python's own parser.
        if isinstance(dtype, str) and not _DTYPE.fullmatch(dtype):
            raise TypeError(dtype)
        name = jax.numpy.dtype(dtype).name
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"dtype must be one that JAX holds, got dtype={dtype!r}; write a name such as 'float32'"
        ) from error
    if name != "bool" and not jax.numpy.issubdtype(jax.numpy.dtype(dtype), np.number):
        raise TypeError(
            f"dtype must be one that JAX holds, got dtype={dtype!r}; texts are {BYTES!r}, and only "
            "a HostFunction takes them"
        )
    return name


@functools.lru_cache(maxsize=256)
def numpy_dtype(name: str) -> np.dtype:
    """Returns the NumPy dtype of a tensor's dtype: objects for "bytes"."""
    return np.dtype(object) if name == BYTES else np.dtype(jax.numpy.dtype(name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signature:
    """Inputs and outputs by name, in the order of their declaration.

    Attributes:
        inputs: Tensors of a call, all of them by name.
        outputs: Tensors of its result.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def batched(self) -> bool:
        """Whether calls are joined along the first axis."""
        return any(tensor.batched for tensor in self.inputs.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Platform:
    """A platform of a bundle, with its own options.

    A platform with a `device_kind` or a `weights` dtype has programs of its own. The others share
    one program for each batch size.

    Args:
        name: "cpu", "cuda", "rocm" or "tpu".
        device_kind: Trace for this device, such as "NVIDIA H100 80GB HBM3", so that operations
            that choose an implementation by device choose it for this one.
        compiler_options: Options of XLA by name, applied when the program is compiled.
        weights: Floating-point weights are converted to this dtype when they are loaded, and the
            program is traced with it. None keeps their own.
        layouts: Memory layouts of weights: a pattern of their names, and the order of axes from
            the slowest to the fastest (`major_to_minor` of `jax.experimental.layout.Layout`).

    Raises:
        TypeError: A compiler option is not a text, a finite number or a boolean.
        ValueError: The name or the dtype is none of those above, or a compiler option names a
            file, a directory or further flags.
    """

    name: str
    device_kind: str | None = None
    compiler_options: Mapping[str, str | int | float | bool] = dataclasses.field(
        default_factory=dict
    )
    weights: str | None = None
    layouts: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in PLATFORMS:
            raise ValueError(
                f"a platform must be one of {', '.join(PLATFORMS)}, got name={self.name!r}; "
                'NVIDIA GPUs are "cuda"'
            )
        check_compiler_options(self.compiler_options)
        if self.weights is not None:
            object.__setattr__(self, "weights", dtype_name(self.weights))
            if not jax.numpy.issubdtype(jax.numpy.dtype(self.weights), np.floating):
                raise ValueError(
                    f"weights must be a floating-point dtype, got weights={self.weights!r}; "
                    'write weights="bfloat16", or None to keep their own'
                )

    @property
    def own_programs(self) -> bool:
        """Whether this platform has programs of its own."""
        return self.device_kind is not None or self.weights is not None


def check_compiler_options(options: Mapping[Any, Any]) -> None:
    """Checks the options of XLA in a bundle: plain values by name, and no files.

    A bundle's options are applied wherever it is loaded, so none may choose a file there to write
    or to read. XLA checks names and values when it compiles: they depend on the platform.

    Raises:
        TypeError: A name is not a text, or a value is not a text, a finite number or a boolean.
        ValueError: An option names a file, a directory or further flags.
    """
    for name, value in options.items():
        plain = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
        if not isinstance(name, str) or not plain:
            raise TypeError(
                "compiler options must be texts, finite numbers or booleans by name, got "
                f"{name!r}: {value!r}; write compiler_options={{'xla_name': True}}"
            )
        if _FILES.search(name.lower()) or not _PLAIN.fullmatch(str(value)):
            raise ValueError(
                "compiler options of a bundle must name no file, directory or further flags, since "
                f"they are applied wherever it is loaded, got {name!r}: {value!r}; leave it out, "
                "and set XLA_FLAGS for your own process"
            )


@dataclasses.dataclass(frozen=True)
class HostFunction:
    """A function of the host before or after the program, by name: a tokenizer, a table of labels.

    The bundle holds its name, its tensors and its assets, and no code. `load` and `Server` take
    the function itself, `f(arrays, assets) -> arrays`: NumPy arrays by name, and the paths of the
    bundle's assets by file name. The arrays are read-only, since they belong to the callers: write
    `x = x / 2` and not `x /= 2`.

    Args:
        name: Name of the function in `load(functions=...)`.
        tensors: Before the program, the inputs of a call; after it, the outputs. Their dtype may
            be "bytes": an array of objects of class `bytes`.

    Raises:
        ValueError: The name holds other characters than letters, digits, "_", "-" and ".".
    """

    name: str
    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        check_name(self.name, "a host function")
        for name in self.tensors:
            check_name(name, f"a tensor of the host function {self.name!r}")


def check_name(name: object, owner: str) -> None:
    """Raises ValueError if `name` cannot stand in a path or a URL."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"the name of {owner} must have letters, digits, '_', '-' and '.' alone, got {name!r}; "
            "write a name such as 'input_ids'"
        )
