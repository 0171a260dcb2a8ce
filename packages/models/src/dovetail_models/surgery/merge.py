# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Merging: several models of one architecture become one by a weighted sum, without training.

Parameters are merged one by one, each in one program. The additional memory is the result and, for
one parameter, a float32 copy per model.
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

from dovetail_models import _elsewhere
from dovetail_models.adapters.adapter import adapters
from dovetail_models.adapters.place import build
from dovetail_models.build import AnyModel
from dovetail_models.describing.abbreviation import dotted
from dovetail_models.placing.shard import WEIGHTS
from dovetail_models.surgery import mix
from dovetail_models.tables.config_json import near
from dovetail_models.tables.table import listed

Method: TypeAlias = Literal[
    "linear", "slerp", "task_arithmetic", "ties", "dare_linear", "dare_ties"
]
Merged = TypeVar("Merged", bound=AnyModel)
_SPARSE = ("ties", "dare_linear", "dare_ties")
_VALUES = {
    "base": "base=, the model that they were trained from",
    "density": "density=0.2, for example",
    "seed": "seed=0, for example",
}


@jax.transfer_guard("allow")
@_elsewhere.call
def merge(
    models: Sequence[Merged],
    *,
    method: Method,
    weights: Sequence[float | int],
    base: Merged | None = None,
    density: float | int | None = None,
    seed: int | None = None,
) -> Merged:
    """Merges models of one architecture. `surgery.mix` has the formulas.

    The methods "linear" and "slerp" combine the models; the others add task vectors (a model minus
    `base`) to `base`:

    - "linear": weighted mean, divided by the sum of the weights.
    - "slerp": point on the arc between two models at w_1 / (w_0 + w_1).
    - "task_arithmetic": weighted sum of the task vectors.
    - "ties": each keeps its largest entries, the share `density`; then the weighted mean of the
      entries with the elected sign.
    - "dare_linear": each keeps entries with probability `density`; then the weighted sum.
    - "dare_ties": as "dare_linear", but the sum takes only entries of the elected sign.

    Equal models merge to themselves, bit for bit ("linear", "slerp"; the others if all equal
    `base`).

    Args:
        models: At least two models; just two for "slerp".
        method: One of the six names above.
        weights: One finite weight per model. For "linear" and "slerp" none below 0, not all 0.
        base: The model from which `models` were trained. Required for methods with task vectors.
        density: Share of entries to keep, in (0, 1]. Required for "ties" and "dare_*".
        seed: Seed of the kept entries. Required for "dare_*".

    Returns:
        A model with the config, dtypes and shardings of `base`, or else of the first model.

    Raises:
        ValueError: Models differ in more than values, one has adapters, or an option is out of
            range, missing or unused by the method.

    Example:

        >>> from dovetail_models import init, llama, merge
        >>> config = llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32)
        >>> models = [init(config, seed=0), init(config, seed=1)]
        >>> merge(models, method="linear", weights=[1, 1]).embed.embedding.shape
        (64, 16)
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
    # A copy of the graph. It holds the arrays of `start` until each is replaced.
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
                f"method={method!r} {'needs' if needed else 'does not use'} {name}, got "
                f"{f'{name}=None' if needed else f'a {name}'}. "
                f"{f'Pass {_VALUES[name]}' if needed else f'Leave {name} out'}."
            )
    if density is not None and not 0 < density <= 1:
        raise ValueError(
            f"density is the share of entries that stay, above 0 and at most 1, got "
            f"density={density}. Use density=0.2, for example."
        )


def _check_plain(model: nnx.Module) -> None:
    paths = list(adapters(model))
    if paths:
        raise ValueError(
            "Models are merged with their adapters folded in, since a sum of A B is not the "
            f"product of sums, got adapters at {listed(paths, limit=5)}. Use lora.merge(model) on "
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
    """Yields the differences of two configs, except in keys without effect on the computation."""
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
