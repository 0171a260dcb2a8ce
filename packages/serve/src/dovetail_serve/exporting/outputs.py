# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs of a program: a dictionary of arrays, each with the batch axis first.

`check_numbers` is here because a Python number in `params` can change the dtype of an output.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from dovetail_serve._patterns import few, name_of
from dovetail_serve.bundle.manifest import SYMBOLIC
from dovetail_serve.bundle.tree import SINGLE
from dovetail_serve.types import BATCH, Tensor, check_name


def outputs_of(program: jax_export.Exported, rows: int | str | None) -> dict[str, Tensor]:
    """Returns the outputs of a program for `rows` rows as tensors.

    Raises ValueError if they are not a dictionary of arrays by name, or lack the batch axis.
    """
    result = jax.tree_util.tree_unflatten(program.out_tree, program.out_avals)
    if not isinstance(result, Mapping) or not result:
        raise ValueError(
            "fn must return a dictionary of arrays by name, got "
            f'{jax.tree_util.tree_structure(result)}; write return {{"logits": logits}}'
        )
    outputs = {}
    for name, aval in result.items():
        check_name(name, "an output")
        outputs[name] = _tensor(name, aval, rows)
    return outputs


def _tensor(name: str, aval: Any, rows: int | str | None) -> Tensor:
    if aval is None:
        raise ValueError(f"each output must be an array, got {name!r} of None; leave it out")
    if not hasattr(aval, "dtype"):
        raise ValueError(
            f"each output must be an array, got {name!r} of "
            f'{jax.tree_util.tree_structure(aval)}; return {{"{name}_first": ..., ...}}'
        )
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended):
        raise ValueError(
            f"each output must be an array of numbers, got {name!r} of {aval.dtype}; return "
            "jax.random.key_data(key)"
        )
    if rows is None:
        return Tensor(aval.shape, aval.dtype.name)
    first, *others = map(str, aval.shape) if aval.shape else ("",)
    if first != (BATCH if rows == SYMBOLIC else str(rows)) or BATCH in "".join(others):
        raise ValueError(
            "each output must have one row for each row of the inputs, along its first axis alone, "
            f"got {name!r} of shape {aval.shape} for {rows} rows; return the batch axis first"
        )
    return Tensor((BATCH, *aval.shape[1:]), aval.dtype.name)


def check_equal(
    outputs: Mapping[str, Tensor],
    others: Mapping[str, Tensor],
    *,
    rows: int | str | None,
    platforms: Sequence[str],
) -> None:
    """Raises ValueError if two programs differ in their outputs.

    Args:
        outputs: Outputs of the first program.
        others: Outputs of another one.
        rows: Its number of rows.
        platforms: Names of its platforms.
    """
    for name in sorted({*outputs, *others}):
        if outputs.get(name) != others.get(name):
            raise ValueError(
                "outputs must have one shape and dtype for each platform and number of rows, got "
                f"{name!r} as {outputs.get(name)} and as {others.get(name)} for {rows} rows on "
                f"{', '.join(platforms)}; make its shape independent of the rows, and cast it to "
                "one dtype"
            )


def check_numbers(
    fn: Callable[..., Any], params: Any, inputs: Mapping[str, Tensor], *, rows: int | None
) -> None:
    """Checks that no number in `params` decides the dtype of an output.

    A Python number, or the array that JAX makes of one, takes the dtype of the array beside it. As
    a weight of a bundle it has a dtype of its own, and would turn bfloat16 to float32.

    Args:
        fn: The function. It is traced twice if there are such numbers.
        params: Pytree of its weights.
        inputs: Tensors by name.
        rows: A number of rows; None without a batch axis.

    Raises:
        ValueError: An output has another dtype with a weight in place of a number.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    numbers = [name_of(path) or SINGLE for path, leaf in leaves if _is_number(leaf)]
    if not numbers:
        return
    arrays = {name: jax.ShapeDtypeStruct(t.sized(rows), t.dtype) for name, t in inputs.items()}
    called, stored = (
        jax.eval_shape(
            lambda *args, **named: dict(fn(*args, **named)),
            treedef.unflatten(_abstract(leaf, kept) for _, leaf in leaves),
            **arrays,
        )
        for kept in (True, False)
    )
    for name in called:
        if called[name].dtype != stored[name].dtype:
            raise ValueError(
                "a number in params must not decide the dtype of an output, since the bundle "
                f"stores it with a dtype of its own, got {name!r} as {called[name].dtype} and, "
                f"with {few(numbers)} as a weight, as {stored[name].dtype}; pass "
                f"np.asarray(number, {called[name].dtype.name!r})"
            )


def _is_number(leaf: Any) -> bool:
    """Whether a leaf has no dtype of its own."""
    return not isinstance(leaf, np.ndarray | np.generic) and jax.typeof(leaf).weak_type


def _abstract(leaf: Any, kept: bool) -> Any:
    """Returns a leaf for an abstract call: a number as it is (`kept`), or as a weight."""
    if isinstance(leaf, np.ndarray | np.generic):  # JAX takes no other byte order
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype.name)
    if kept or not _is_number(leaf):
        return leaf
    return jax.ShapeDtypeStruct(jax.typeof(leaf).shape, jax.typeof(leaf).dtype)
