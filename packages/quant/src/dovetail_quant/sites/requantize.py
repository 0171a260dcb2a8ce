# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""New weights for a served quantized model, without rebuilding it.

In reinforcement learning the policy is trained in float and sampled quantized, and its weights
change every step. The codes keep tree, shapes and shardings, so nothing is compiled again, and the
whole is one program that can be fused with the update.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dovetail_quant.methods.absmax import absmax
from dovetail_quant.sites.kernel import Kernel


@jax.transfer_guard("allow")
def requantize(state: Any, params: Any) -> Any:
    """Returns the state of a quantized model with new codes for the weights in `params`.

    Codes are rounded to nearest, with new scales; divisors of x (AWQ, SmoothQuant) are kept. Other
    variables come from `params` if present. Pure: it may be jitted, and equals `apply`.

    Args:
        state: `nnx.state(quantized)`.
        params: The state of a float model with the same paths.

    Raises:
        ValueError: `params` lacks the path of some codes, or has it in another shape.

    Example:

        >>> from flax import nnx
        >>> from dovetail_quant import Spec, apply, plan
        >>> policy = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> quantized = apply(policy, plan(policy, [("**", Spec())]))
        >>> update = jax.jit(requantize, donate_argnums=0)
        >>> nnx.update(quantized, update(nnx.state(quantized), nnx.state(policy)))
    """
    news = dict(nnx.to_flat_state(params))
    flat = []
    for path, variable in nnx.to_flat_state(state):
        old, name = variable.get_value(), ".".join(map(str, path))
        if path in news:
            new: Any = news[path].get_value()
            value = requantized(old, new, name) if isinstance(old, Kernel) else new
        elif isinstance(old, Kernel):
            raise ValueError(
                f"the weights must have the paths of the quantized model, got none for {name!r}; "
                "pass nnx.state(model) of the model that apply was given"
            )
        else:
            value = old
        flat.append((path, variable.replace(value)))
    return nnx.from_flat_state(flat)


def requantized(old: Kernel, new: Any, name: str) -> Kernel:
    """Returns the codes of new weights, rounded to nearest, in the form of the old ones.

    Args:
        old: The codes to replace; spec, divisors of x and product stay.
        new: Float weights of the same shape.
        name: Name of the parameter, for errors.
    """
    if tuple(new.shape) != old.shape:
        raise ValueError(
            f"the weights must be of the quantized model, got {name!r} of shape "
            f"{list(new.shape)} for codes of {list(old.shape)}; pass the model's own"
        )
    w = old.axes.fold(jnp.asarray(new))
    if old.scale is not None:
        w = w.astype(jnp.float32) * old.scale[..., None]
    prepare = jax.vmap(old.matmul.prepare) if old.axes.batch else old.matmul.prepare
    return dataclasses.replace(old, prepared=prepare(absmax(w, old.spec)))
