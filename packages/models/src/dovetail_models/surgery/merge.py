# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Several models of one architecture as one, without training: a weighted sum of some kind.

Parameter by parameter, each in one program: beside the models there is the result and what one
parameter takes, a float32 copy of it per model.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import PRNGKeyArray

from dovetail_models.build import AnyModel
from dovetail_models.hf.table import dotted, listed, near
from dovetail_models.shard import WEIGHTS
from dovetail_models.surgery import mix
from dovetail_models.surgery.adapter import adapters
from dovetail_models.surgery.place import build

Method: TypeAlias = Literal[
    "linear", "slerp", "task_arithmetic", "ties", "dare_linear", "dare_ties"
]
Merged = TypeVar("Merged", bound=AnyModel)
_SPARSE = ("ties", "dare_linear", "dare_ties")


def merge(
    models: Sequence[Merged],
    *,
    method: Method,
    weights: Sequence[float | int],
    base: Merged | None = None,
    density: float | int | None = None,
    seed: int | None = None,
) -> Merged:
    """A new model made of `models`, with a weight for each (see `mix` for the formulas).

    method: "linear" is the weighted mean; "slerp" the point of the arc from the first of two models
    to the second that the weights divide. The others add task vectors, a model less `base`, to
    `base`: "task_arithmetic" all of them; "ties" the mean of those that agree in sign, after
    keeping the share `density` of each; "dare_linear" and "dare_ties" their sum after keeping
    entries with probability `density`, drawn with `seed`, the latter only of those that agree.
    "linear" and "slerp" divide by the sum of the weights, "ties" by that of those that agree.

    The result has the config, dtypes and shardings of `base`, or else of the first model. Equal
    models merge to themselves, bit for bit ("linear", "slerp", and all if equal to `base`).

    Raises ValueError for models that differ in more than values (with what differs), adapters, and
    an option that is missing or that the method does not use.

    >>> chat = merge([poet, coder], method="ties", weights=[1, 1], base=base, density=0.2)
    """
    _check_options(
        len(models), method, weights, has_base=base is not None, density=density, seed=seed
    )
    every = [*models, *([] if base is None else [base])]
    for model in every:
        _check_plain(model)
    start = every[-1] if base is not None else models[0]
    for i, model in enumerate(every):
        _check_same(start, model, i)
    operands = jnp.asarray(weights, jnp.float32)
    rule = functools.partial(_rule, method=method, density=density)
    key = None if seed is None else jax.random.key(seed)
    # A copy of the graph; its arrays are those of `start` until each is replaced.
    result = nnx.clone(start)
    states = [dict(nnx.to_flat_state(nnx.state(model, WEIGHTS))) for model in models]
    for i, (path, param) in enumerate(nnx.to_flat_state(nnx.state(result, WEIGHTS))):
        leaf = param.get_value()
        leaves = [state[path].get_value() for state in states]
        at = None if key is None else jax.random.fold_in(key, i)
        param.set_value(build(rule, leaves, operands, leaf, at, like=leaf))
    return result


@functools.partial(jax.jit, static_argnames=("method", "density"))
def _rule(
    leaves: list[jax.Array],
    weights: jax.Array,
    start: jax.Array,
    key: PRNGKeyArray | None,
    *,
    method: Method,
    density: float | int | None,
) -> jax.Array:
    if method == "linear":
        return mix.linear(leaves, weights)
    if method == "slerp":
        return mix.slerp(leaves, weights)
    if method == "task_arithmetic":
        return mix.task_arithmetic(leaves, weights, base=start)
    assert density is not None
    if method == "ties":
        return mix.ties(leaves, weights, base=start, density=density)
    assert key is not None
    elect = method == "dare_ties"
    return mix.dare(leaves, weights, base=start, density=density, key=key, elect=elect)


def _check_options(
    count: int,
    method: str,
    weights: Sequence[float | int],
    *,
    has_base: bool,
    density: float | int | None,
    seed: int | None,
) -> None:
    if method not in get_args(Method):
        raise ValueError(
            f"method must be one of {get_args(Method)}, got method={method!r}"
            f"{near(method, get_args(Method))}. Use method='linear' for the mean."
        )
    if count < 2 or len(weights) != count or (method == "slerp" and count != 2):
        raise ValueError(
            f"There must be two models or more, for slerp just two, and a weight for each, got "
            f"{count} models, method={method!r}, weights={list(weights)}. Use weights=[1, 1] for "
            "two alike."
        )
    positive = method not in ("linear", "slerp") or (min(weights) >= 0 and sum(weights) > 0)
    if not positive or not all(map(math.isfinite, weights)):
        raise ValueError(
            "Weights must be finite, and for linear and slerp at least 0 with a sum above 0, got "
            f"method={method!r}, weights={list(weights)}. Use weights=[1, 1] for two alike."
        )
    needs = {
        "base": (method not in ("linear", "slerp"), has_base),
        "density": (method in _SPARSE, density is not None),
        "seed": (method.startswith("dare"), seed is not None),
    }
    for name, (needed, given) in needs.items():
        if needed != given:
            raise ValueError(
                f"method={method!r} {'needs' if needed else 'does not use'} {name}, got it "
                f"{'set' if given else 'left out'}. {'Pass' if needed else 'Leave out'} {name}=."
            )
    if density is not None and not 0 < density <= 1:
        raise ValueError(
            f"density is the share of entries that stay, above 0 and at most 1, got "
            f"density={density}. Use density=0.2, for example."
        )


def _check_plain(model: nnx.Module) -> None:
    found = list(adapters(model))
    if found:
        raise ValueError(
            "Models are merged with their adapters folded in, since a sum of A B is not the "
            f"product of sums, got adapters at {listed(found, limit=5)}. Use lora.merge(model) on "
            "each first."
        )


def _check_same(first: AnyModel, other: AnyModel, i: int) -> None:
    shapes = [
        {dotted(path): leaf.shape for path, leaf in nnx.to_flat_state(nnx.state(model, WEIGHTS))}
        for model in (first, other)
    ]
    lines = list(_differences("config", first.config, other.config))
    lines += [
        f"{leaf}: {shapes[0].get(leaf, 'none')} and {shapes[1].get(leaf, 'none')}"
        for leaf in sorted(shapes[0] | shapes[1])
        if shapes[0].get(leaf) != shapes[1].get(leaf)
    ]
    if lines:
        text = listed(lines, between="\n  ")
        raise ValueError(
            f"Models must be of one architecture, got model {i} that differs:\n  {text}\n"
            "Merge models that were trained from one base, or change one by surgery first."
        )


def _differences(name: str, a: Any, b: Any) -> Iterator[str]:
    """Where two configs differ, but in the keys that alter no computation."""
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        for field in dataclasses.fields(a):
            if field.name != "extra":
                pair = getattr(a, field.name), getattr(b, field.name)
                yield from _differences(f"{name}.{field.name}", *pair)
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b, strict=True)):
            yield from _differences(f"{name}[{i}]", *pair)
    elif a != b:
        yield f"{name}: {a!r} and {b!r}"
