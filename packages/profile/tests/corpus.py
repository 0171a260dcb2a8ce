# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Small programs of one operation or of one layer, with sizes drawn from a seed."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Program = tuple[Callable[..., Any], tuple[Any, ...]]
PASSES = ("fusion", "cpu-instruction-fusion", "ynn-fusion", "library-rewriter")
UNFUSED = {"xla_disable_hlo_passes": ",".join(PASSES)}


class Sizes:
    """Draws sizes of axes, which differ from one another."""

    def __init__(self, name: str, seed: int) -> None:
        draws = np.random.default_rng([zlib.crc32(name.encode()), seed])
        self._sizes = iter(draws.permutation(np.arange(3, 20)).tolist())

    def __call__(self) -> int:
        return next(self._sizes)

    def many(self, count: int) -> tuple[int, ...]:
        return tuple(self() for _ in range(count))


def array(*dims: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def _dot(n: Sizes, dtype: str = "float32") -> Program:
    m, k, width = n.many(3)
    kind = jnp.int32 if dtype == "int8" else None
    shapes = array(m, k, dtype=dtype), array(k, width, dtype=dtype)
    return lambda a, b: lax.dot(a, b, preferred_element_type=kind), shapes


def _batched(n: Sizes) -> Program:
    b, i, j, k, m = n.many(5)
    shapes = array(b, i, j, k), array(b, k, j, m)
    return lambda x, y: jnp.einsum("bijk,bkjm->bim", x, y), shapes


def _transposed(n: Sizes) -> Program:
    m, k, width = n.many(3)
    return lambda a, b: a.T @ b.T, (array(k, m), array(width, k))


def _conv(n: Sizes, *, groups: int = 1, batch_groups: int = 1, **options: Any) -> Program:
    batch, features, height, width, out = n.many(5)
    x = array(batch * batch_groups, features * groups, height + 6, width + 6)
    kernel = array(out * groups * batch_groups, features, 3, 2)
    options = {"window_strides": (1, 1), "padding": "SAME"} | options
    return (
        lambda x, k: lax.conv_general_dilated(
            x, k, feature_group_count=groups, batch_group_count=batch_groups, **options
        ),
        (x, kernel),
    )


def _conv_gradient(n: Sizes) -> Program:
    conv, shapes = _conv(n, window_strides=(2, 3))
    return jax.grad(lambda x, k: conv(x, k).sum(), (0, 1)), shapes


def _conv_transposed(n: Sizes) -> Program:
    batch, features, height, width, out = n.many(5)
    shapes = array(batch, height, width, features), array(3, 2, features, out)
    return lambda x, k: lax.conv_transpose(x, k, (2, 3), "SAME"), shapes


def _reduce_two(n: Sizes) -> Program:
    shape = n.many(2)

    def both(x: Any, y: Any) -> Any:
        start = jnp.float32(0), jnp.float32(1)
        return lax.reduce((x, y), start, lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,))

    return both, (array(*shape), array(*shape))


def _pool(n: Sizes) -> Program:
    x = array(*n.many(3))
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2), (1, 2, 2), "SAME"), (x,)


def _pool_gradient(n: Sizes) -> Program:
    pool, shapes = _pool(n)
    return jax.grad(lambda x: pool(x).sum()), shapes


def _scan(n: Sizes) -> Program:
    length, width = n.many(2)
    shapes = array(width, width), array(length, width, width)
    return lambda c, xs: lax.scan(lambda c, x: (jnp.tanh(c @ x), c.sum()), c, xs), shapes


def _while(n: Sizes) -> Program:
    width = n()
    loop = lambda x: lax.while_loop(lambda x: x.sum() < 3, lambda x: x @ x + 1, x)  # noqa: E731
    return loop, (array(width, width),)


def _switch(n: Sizes) -> Program:
    width = n()
    branches = [lambda x: x @ x, lambda x: jnp.sin(x) + 1, lambda x: x * 2]
    return lambda i, x: lax.switch(i, branches, x), (array(dtype="int32"), array(width, width))


def gather(n: Sizes) -> Program:
    rows, width, count = n.many(3)
    return lambda x, i: x[i], (array(rows + 30, width), array(count, dtype="int32"))


def scatter(n: Sizes) -> Program:
    rows, width, count = n.many(3)
    shapes = array(rows + 30, width), array(count, dtype="int32"), array(count, width)
    return lambda x, i, u: x.at[i].add(u), shapes


def _slice(n: Sizes) -> Program:
    rows, width = n.many(2)
    x = array(rows + 30, width)
    return lambda x, i: lax.dynamic_slice(x, (i, 0), (3, width)), (x, array(dtype="int32"))


def _update(n: Sizes) -> Program:
    rows, width = n.many(2)
    shapes = array(rows + 30, width), array(3, width), array(dtype="int32")
    return lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)), shapes


def _layer_norm(n: Sizes) -> Program:
    def norm(x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    return norm, (array(*n.many(2)),)


def _attention(n: Sizes) -> Program:
    batch, length, heads, width = n.many(4)
    x = array(batch, length, heads, width)
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), (x, x, x)


def _mlp_gradient(n: Sizes) -> Program:
    batch, width, hidden, out = n.many(4)

    def loss(weights: Any, x: Any) -> Any:
        return (jnp.tanh(jax.nn.gelu(x @ weights[0]) @ weights[1]) ** 2).sum()

    return jax.grad(loss), ([array(width, hidden), array(hidden, out)], array(batch, width))


def _mathematics(n: Sizes) -> Program:
    def functions(x: Any, i: Any) -> Any:
        floats = [lax.erf, jnp.tan, jnp.sinh, jnp.cbrt, jnp.arcsin, jnp.log1p, jax.nn.sigmoid]
        integers = [lax.population_count, lax.clz, lambda i: i // 3, lambda i: ~i ^ (i >> 1)]
        return [f(x) for f in floats] + [f(i) for f in integers] + [lax.atan2(x, x), x**2.5]

    shape = n.many(2)
    return functions, (array(*shape), array(*shape, dtype="int32"))


def _random(n: Sizes) -> Program:
    shape = n.many(2)
    return lambda key: jax.random.normal(key, shape), (array(2, dtype="uint32"),)


class _Block(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, rngs=rngs)
        self.out = nnx.Linear(width, width, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        q, k, v = (y.reshape(*x.shape[:2], 2, -1) for y in jnp.split(self.qkv(self.norm(x)), 3, -1))
        x = x + self.out(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))
        return x + self.down(jax.nn.silu(self.up(x)))


class _Decoder(nnx.Module):
    def __init__(self, vocab: int, width: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(vocab, width, rngs=rngs)
        self.blocks = nnx.List([_Block(width, rngs) for _ in range(2)])

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x)


def decoder_step(n: Sizes) -> Program:
    """A decoder's training step by gradient descent."""
    batch, length, half, vocab = n.many(4)
    graph, weights = nnx.split(nnx.eval_shape(lambda: _Decoder(vocab + 20, 2 * half, nnx.Rngs(0))))

    def step(weights: Any, tokens: Any) -> Any:
        def loss(weights: Any) -> Any:
            logps = jax.nn.log_softmax(nnx.merge(graph, weights)(tokens[:, :-1]))
            return -jnp.take_along_axis(logps, tokens[:, 1:, None], -1).mean()

        gradients = jax.grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    return step, (weights, array(batch, length, dtype="int32"))


CORPUS: Mapping[str, Callable[[Sizes], Program]] = {
    "dot": _dot,
    "dot bfloat16": lambda n: _dot(n, "bfloat16"),
    "dot complex": lambda n: _dot(n, "complex64"),
    "dot int8": lambda n: _dot(n, "int8"),
    "dot batched, two contracting axes": _batched,
    "dot transposed": _transposed,
    "conv": _conv,
    "conv strided and padded": lambda n: _conv(n, window_strides=(2, 3), padding=((1, 2), (0, 3))),
    "conv dilated": lambda n: _conv(
        n, padding=((1, 2), (0, 3)), lhs_dilation=(2, 3), rhs_dilation=(3, 2)
    ),
    "conv of groups": lambda n: _conv(n, groups=2, window_strides=(2, 1)),
    "conv of batch groups": lambda n: _conv(n, batch_groups=2),
    "conv transposed": _conv_transposed,
    "conv gradient": _conv_gradient,
    "sum": lambda n: (lambda x: x.sum(1), (array(*n.many(3)),)),
    "max": lambda n: (lambda x: x.max((0, 2)), (array(*n.many(3)),)),
    "argmax": lambda n: (lambda x: x.argmax(1), (array(*n.many(3)),)),
    "reduce of two": _reduce_two,
    "pool": _pool,
    "pool gradient": _pool_gradient,
    "cumsum": lambda n: (lambda x: jnp.cumsum(x, 1), (array(*n.many(2)),)),
    "sort": lambda n: (lambda x: jnp.sort(x, 1), (array(*n.many(2)),)),
    "fft": lambda n: (jnp.fft.fft, (array(*n.many(2), dtype="complex64"),)),
    "rfft of two axes": lambda n: (jnp.fft.rfft2, (array(*n.many(2)),)),
    "scan": _scan,
    "while": _while,
    "switch": _switch,
    "gather": gather,
    "scatter": scatter,
    "dynamic slice": _slice,
    "dynamic update": _update,
    "softmax": lambda n: (jax.nn.softmax, (array(*n.many(2)),)),
    "layer norm": _layer_norm,
    "attention": _attention,
    "MLP gradient": _mlp_gradient,
    "mathematics": _mathematics,
    "random numbers": _random,
}
