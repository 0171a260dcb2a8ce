# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Whether writing norms, rotary embedding and gated units by hand is faster than plain jnp.

The rivals of each function are the same formula with other gradients: by a rule written by hand
that keeps the least (as Liger's kernels do), under `jax.checkpoint`, or by JAX's own rules. Each is
measured forward and backward alone, and inside two layers of a network, where XLA fuses it with its
neighbours. Values are CPU time over all threads; temporary bytes stand beside them.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.layers.glu import _glu, glu
from dovetail_kernels.layers.norm import rms_norm
from dovetail_kernels.layers.rope import rope
from measure import cost, report, rounds

ROWS, EMBED, HIDDEN, HEADS, HEAD = 4096, 512, 2048, 8, 64
our_norm = functools.partial(rms_norm, eps=1e-6)


@jax.custom_vjp
def hand_norm(x: Any, scale: Any) -> Any:
    return our_norm(x, scale)


def _norm_forward(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * inverse * scale.astype(jnp.float32)).astype(x.dtype), (x, scale, inverse)


def _norm_backward(saved: Any, g: Any) -> Any:
    x, scale, inverse = saved
    normed, g = x.astype(jnp.float32) * inverse, g.astype(jnp.float32)
    h = g * scale.astype(jnp.float32)
    dx = inverse * (h - normed * jnp.mean(h * normed, -1, keepdims=True))
    return dx.astype(x.dtype), (g * normed).sum(0).astype(scale.dtype)


hand_norm.defvjp(_norm_forward, _norm_backward)


def plain_glu(gate: Any, up: Any) -> Any:
    return _glu(gate, up, activation="silu", alpha=1.0, limit=None, offset=0.0)


def our_rope(x: Any, *, interleaved: bool) -> Any:
    return rope(x, jnp.arange(x.shape[1]), theta=1e4, interleaved=interleaved)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def hand_rope(x: Any, interleaved: bool) -> Any:
    return our_rope(x, interleaved=interleaved)


def _rope_backward(interleaved: bool, _: Any, g: Any) -> Any:
    back = -jnp.arange(g.shape[1])
    return (rope(g, back, theta=1e4, interleaved=interleaved),)


hand_rope.defvjp(
    lambda x, interleaved: (our_rope(x, interleaved=interleaved), None), _rope_backward
)


def pulled(function: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> Any:
        out, pull = jax.vjp(function, *args[:-1])
        return out, pull(args[-1])

    return both


def gradients(layer: Callable[..., Any]) -> Callable[..., Any]:
    def total(*args: Any) -> Any:
        return layer(layer(*args), *args[1:]).astype(jnp.float32).sum()

    return jax.grad(total, (0, 1))


def compare(case: str, rivals: dict[str, Callable[..., Any]], *args: Any) -> None:
    """Ours is the first; a line for each other one."""
    programs = {name: jax.jit(f).lower(*args).compile() for name, f in rivals.items()}
    ours, *others = programs
    for name in others:
        outs = (jax.tree.leaves(programs[one](*args)) for one in (ours, name))
        for one, other in zip(*outs, strict=True):
            one, other = (np.asarray(a, np.float32) for a in (one, other))
            # bfloat16 rounds at other places; float32 sums in another order.
            if abs(one - other).max() > 5e-2 * abs(other).max():
                raise SystemExit(f"{case}: {name} differs by {abs(one - other).max()}")
    calls = {
        name: lambda program=program: cost(lambda: jax.block_until_ready(program(*args))).cpu_s
        for name, program in [*programs.items(), *((f"{n} again", programs[n]) for n in others)]
    }
    found = rounds(calls, repeats=9)
    for name in others:
        report(
            f"{case}, against {name}",
            metric="cpu_s",
            unit="s",
            values=found[ours],
            peer=name,
            peer_values=found[name],
            peer_again=found[f"{name} again"],
            temporary_bytes=programs[ours].memory_analysis().temp_size_in_bytes,
            peer_temporary_bytes=programs[name].memory_analysis().temp_size_in_bytes,
        )


def main() -> None:
    for dtype in ("float32", "bfloat16"):
        rng = np.random.default_rng(0)

        def draw(*shape: int, size: float = 1.0, rng: Any = rng, dtype: str = dtype) -> Any:
            return jnp.asarray(rng.standard_normal(shape, np.float32) * size, dtype)

        x, gate, up, g = draw(ROWS, EMBED), *draw(3, ROWS, HIDDEN)
        scale, square = draw(EMBED), draw(EMBED, EMBED, size=0.04)
        w = draw(3, EMBED, HIDDEN, size=0.03)
        norms = {"ours": our_norm, "a rule by hand": hand_norm}
        compare(
            f"rms_norm with gradients, {dtype} [{ROWS}, {EMBED}]",
            {name: pulled(f) for name, f in norms.items()},
            *(x, scale, draw(ROWS, EMBED)),
        )
        compare(
            f"rms_norm in two layers, {dtype} [{ROWS}, {EMBED}]",
            {
                name: gradients(lambda x, m, scale, f=f: jnp.tanh(f(x, scale) @ m))
                for name, f in norms.items()
            },
            *(x, square, scale),
        )
        units = {"ours": glu, "JAX's rules": plain_glu}
        compare(
            f"glu with gradients, {dtype} [{ROWS}, {HIDDEN}]",
            {name: pulled(f) for name, f in units.items()},
            *(gate, up, g),
        )
        compare(
            f"glu in two layers, {dtype} [{ROWS}, {EMBED}] to {HIDDEN}",
            {
                name: gradients(lambda x, w, f=f: x + f(x @ w[0], x @ w[1]) @ w[2].T)
                for name, f in units.items()
            },
            *(x, w),
        )
        heads, cotangent = draw(2, 2, ROWS // 2, HEADS, HEAD)
        for interleaved in (False, True):
            kind = "neighbours" if interleaved else "halves"
            compare(
                f"rope of {kind} with gradients, {dtype} {list(heads.shape)}",
                {
                    "ours": pulled(functools.partial(our_rope, interleaved=interleaved)),
                    "a rule by hand": pulled(lambda x, i=interleaved: hand_rope(x, i)),
                },
                *(heads, cotangent),
            )


if __name__ == "__main__":
    main()
