# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Operations timed on this device, each beside what JAX offers for the same."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sample import by_sort, by_top_k

import dovetail_kernels as kernels
from device_timing import Contest, normals, with_gradients
from dovetail_kernels.dispatch import device

PAGE = 16
GROUP = 128


def _able(operation: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """The implementations that can, but for a reference that would not be chosen."""
    choices = kernels.explain(operation, *args, **options).rows
    able = [choice for choice in choices if choice.refusal is None]
    return [choice.name for choice in able if choice.selected or choice.name != "reference"]


def _jax_nn(q: Any, k: Any, v: Any, *, by: str = "xla", **options: Any) -> jax.Array:
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(q, k, v, implementation=by, **options)


def _fastest() -> str:
    """The implementation of jax.nn that does not hold all logits, where there is one."""
    return "cudnn" if device().platform == "gpu" else "xla"


def attention(batch: int, length: int, heads: int, width: int, chain: int) -> Iterator[Contest]:
    """Causal, forward and with gradients, by each implementation that can."""
    shape = (batch, length, heads, width)
    one = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    inputs = functools.partial(_tuple, functools.partial(normals, 0, *[shape] * 4))
    flops = 2.0 * batch * heads * width * length**2
    theirs = functools.partial(_jax_nn, by=_fastest(), is_causal=True)
    for impl in _able(kernels.attention, one, one, one, causal=True):
        ours = functools.partial(kernels.attention, causal=True, impl=impl)
        peers = {} if impl == "cudnn" else {f"jax.nn {_fastest()}": theirs}
        where = f"{impl}, bfloat16 {list(shape)}"
        yield Contest(
            case=f"attention, causal, {where}",
            ours=lambda q, k, v, g, ours=ours: ours(q, k, v),
            peers={name: lambda q, k, v, g, f=f: f(q, k, v) for name, f in peers.items()},
            inputs=inputs,
            chain=chain,
            flops=flops,
        )
        yield Contest(
            case=f"attention with gradients, causal, {where}",
            ours=with_gradients(ours),
            peers={name: with_gradients(f) for name, f in peers.items()},
            inputs=inputs,
            chain=max(chain // 3, 1),
            flops=3.5 * flops,  # of the backward pass five products, the forward has two
        )


def packed(
    batch: int, length: int, heads: int, kv_heads: int, width: int, chain: int
) -> Iterator[Contest]:
    """Four documents a row, beside as many rows of one document, which need no ids."""
    shapes = [(batch, length, n, width) for n in (heads, kv_heads, kv_heads, heads)]
    q, k, v, _ = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    ids = np.broadcast_to(np.arange(length, dtype=np.int32) * 4 // length, (batch, length))
    options = {"causal": True, "segment_ids": ids}

    def theirs(*packed: Any) -> jax.Array:
        rows = [x.reshape(4 * batch, length // 4, *x.shape[2:]) for x in packed]
        return _jax_nn(*rows, by=_fastest(), is_causal=True).reshape(packed[0].shape)

    for impl in _able(kernels.attention, q, k, v, **options):
        ours = functools.partial(kernels.attention, **options, impl=impl)
        yield Contest(
            case=f"attention with gradients, 4 packed documents, {impl}, bfloat16 "
            f"{list(shapes[0])} on {kv_heads} key heads",
            ours=with_gradients(ours),
            peers={f"jax.nn {_fastest()}, a document a row": with_gradients(theirs)},
            inputs=functools.partial(_tuple, functools.partial(normals, 0, *shapes)),
            chain=chain,
            flops=3.5 * 2.0 * batch * heads * width * length**2 / 4,
        )


def loss(cases: Sequence[tuple[int, int, int, int]], budget: int, chain: int) -> Iterator[Contest]:
    """The loss of a linear head and its gradients, against all logits at once.

    The second peer keeps its logits in bfloat16, half the bytes and another gradient.
    """
    for tokens, width, vocabulary, axis in cases:

        def inputs(
            shapes: Any = ((tokens, width), (width, vocabulary) if axis else (vocabulary, width)),
            tokens: int = tokens,
        ) -> tuple[Any, ...]:
            x, w = normals(0, *shapes)
            labels = jax.random.randint(jax.random.key(1), (tokens,), 0, max(shapes[1]))
            return x, w * jnp.bfloat16(shapes[0][1] ** -0.5), labels

        def naive(dtype: Any, x: Any, w: Any, labels: Any, axis: int = axis) -> jax.Array:
            z = jnp.dot(x, w if axis else w.T, preferred_element_type=dtype).astype(jnp.float32)
            at = jnp.take_along_axis(z, labels[:, None], axis=1)[:, 0]
            return jnp.sum(jax.nn.logsumexp(z, axis=1) - at)

        def ours(
            x: Any, w: Any, labels: Any, budget: int | None = None, axis: int = axis
        ) -> jax.Array:
            return kernels.linear_cross_entropy(x, w, labels, vocab_axis=axis, budget=budget).sum

        for name, most in (("blocked", None), (f"blocked in {budget} bytes", budget)):
            yield Contest(
                case=f"linear cross-entropy with gradients, {name}, bfloat16 "
                f"{tokens}x{width}x{vocabulary}, vocab_axis={axis}",
                ours=jax.value_and_grad(functools.partial(ours, budget=most), (0, 1)),
                peers={
                    f"all logits in {jnp.dtype(dtype).name}": jax.value_and_grad(
                        functools.partial(naive, dtype), (0, 1)
                    )
                    for dtype in (jnp.float32, jnp.bfloat16)
                },
                inputs=inputs,
                chain=chain,
                flops=6.0 * tokens * width * vocabulary,
            )


def grouped(cases: Sequence[tuple[int, int, int, int]], chain: int) -> Iterator[Contest]:
    """A mixture's product, with gradients too, against lax.ragged_dot, and as long as one expert's.

    The one expert has all rows: its result is another, so its time alone is a bound.
    """
    for count, rows, inner, outer in cases:
        share = np.random.default_rng(0).dirichlet(np.full(count, 4.0))
        sizes = np.random.default_rng(1).multinomial(rows, share).astype(np.int32)

        def inputs(shapes: Any = ((rows, inner), (count, inner, outer), (rows, outer))) -> Any:
            x, w, g = normals(0, *shapes)
            return x, w * jnp.bfloat16(inner**-0.5), g  # noqa: B023 - called within this round

        def through(f: Any, sizes: Any = sizes) -> Any:
            return lambda x, w: f(x, w, jnp.asarray(sizes))

        able = _able(kernels.grouped_matmul, *_grouped_shapes(count, rows, inner, outer))
        for impl in able[:2]:  # what runs, and what runs where that cannot
            ours = through(functools.partial(kernels.grouped_matmul, impl=impl))
            theirs = through(jax.lax.ragged_dot)
            where = f"{impl}, bfloat16 [{rows}, {inner}] by {count} of [{inner}, {outer}]"
            yield Contest(
                case=f"grouped product, {where}",
                ours=lambda x, w, g, f=ours: f(x, w),
                peers={"lax.ragged_dot": lambda x, w, g, f=theirs: f(x, w)},
                bounds={"one expert": lambda x, w, g: x @ w[0]},
                inputs=inputs,
                chain=chain,
                flops=2.0 * rows * inner * outer,
            )
            yield Contest(
                case=f"grouped product with gradients, {where}",
                ours=with_gradients(ours),
                peers={"lax.ragged_dot": with_gradients(theirs)},
                bounds={"one expert": with_gradients(lambda x, w: x @ w[0])},
                inputs=inputs,
                chain=chain,
                flops=6.0 * rows * inner * outer,
            )


def _grouped_shapes(count: int, rows: int, inner: int, outer: int) -> list[Any]:
    shapes = (((rows, inner), "bfloat16"), ((count, inner, outer), "bfloat16"), ((count,), "int32"))
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]


def paged(
    requests: Sequence[int], longest: int, heads: int, kv_heads: int, chain: int, width: int = 128
) -> Iterator[Contest]:
    """Decoding from pages, against jax.nn on contiguous keys: no copy from pages is in its time."""
    for rows in requests:
        lengths = np.random.default_rng(0).integers(longest // 4, longest + 1, rows, np.int32)
        columns = -(-longest // PAGE)
        table = np.random.default_rng(1).permutation(rows * columns).reshape(rows, columns)
        table, starts = table.astype(np.int32), np.arange(rows + 1, dtype=np.int32)

        def inputs(rows: int = rows, columns: int = columns, table: Any = table) -> Any:
            q, pages = normals(0, (rows, heads, width), (rows * columns, 2, PAGE, kv_heads, width))
            k, v = (pages[table, i].reshape(rows, columns * PAGE, kv_heads, width) for i in (0, 1))
            return q, pages, k, v

        def ours(q: Any, pages: Any, k: Any, v: Any, n: Any = (table, lengths, starts)) -> Any:
            found = dict(
                zip(("page_table", "kv_lengths", "q_starts"), map(jnp.asarray, n), strict=True)
            )
            return kernels.paged_attention(q, pages, **found)

        def theirs(by: str, q: Any, pages: Any, k: Any, v: Any, lengths: Any = lengths) -> Any:
            known = {"key_value_seq_lengths": jnp.asarray(lengths)}
            return _jax_nn(q[:, None], k, v, by=by, **known)[:, 0]

        yield Contest(
            case=f"paged attention, {rows} requests decode, bfloat16, {int(lengths.sum())} keys",
            ours=ours,
            peers={
                f"jax.nn {by}": functools.partial(theirs, by)
                for by in dict.fromkeys(("xla", _fastest()))
            },
            inputs=inputs,
            chain=chain,
            nbytes=float(lengths.sum()) * 2 * kv_heads * width * 2,
        )


def quantized(rows: Sequence[int], width: int, chain: int) -> Iterator[Contest]:
    """Products with 8 and 4 bits by each implementation, against bfloat16 weights."""

    def inputs(rows: int, bits: int) -> tuple[Any, ...]:
        x, w = normals(0, (rows, width), (width, width))
        packed = kernels.pack_weights(w, bits=bits, group_size=GROUP if bits == 4 else None)
        return x, packed, kernels.unpack_weights(packed).astype(jnp.bfloat16)

    for count in rows:
        for bits, activations in ((8, None), (4, None), (8, "int8")):
            made = functools.partial(inputs, count, bits)
            x, packed, _ = jax.eval_shape(made)
            options = {"activations": activations}
            for impl in _able(kernels.quantized_matmul, x, packed, **options):
                product = functools.partial(kernels.quantized_matmul, **options, impl=impl)
                yield Contest(
                    case=f"quantized product, int{bits}{' by int8 rows' if activations else ''}, "
                    f"{impl}, {count} rows of {width}",
                    ours=lambda x, packed, w, f=product: f(x, packed),
                    peers={"bfloat16": lambda x, packed, w: x @ w},
                    inputs=made,
                    chain=max(chain // (1 if count < 1024 else 5), 1),
                    flops=2.0 * count * width**2,
                    nbytes=float(packed.nbytes),
                    dtype="int8" if activations else "bfloat16",
                )


def sample(rows: Sequence[int], vocabulary: int, chain: int, k: int = 50) -> Iterator[Contest]:
    """A token of each row's k largest logits, against a sort and lax.top_k."""

    def inputs(count: int) -> tuple[Any, ...]:
        (z,) = normals(0, (count, vocabulary), dtype="float32")
        return 3 * z, jax.random.key_data(jax.random.split(jax.random.key(1), count))

    def drawn(draw: Callable[..., Any], z: Any, bits: Any) -> Any:
        return draw(z, keys=jax.random.wrap_key_data(bits))

    def among_largest(peer: str, ours: Any, theirs: Any, args: Any) -> None:
        """Each has noise of its own; so it is that all tokens are among the k largest."""
        least = jax.lax.top_k(args[0], k)[0][:, -1]
        for who, tokens in (("ours", ours), (peer, theirs)):
            if not bool((jnp.take_along_axis(args[0], tokens[:, None], 1)[:, 0] >= least).all()):
                raise RuntimeError(f"{who} drew a token that is not among the {k} largest")

    ours = functools.partial(kernels.sample, top_k=k)
    peers = {
        "a sort": lambda z, keys: by_sort(z, keys, k, None),
        "lax.top_k": lambda z, keys: by_top_k(z, keys, k, None),
    }
    for count in rows:
        yield Contest(
            case=f"sample, top_k={k}, float32 [{count}, {vocabulary}]",
            ours=functools.partial(drawn, ours),
            peers={name: functools.partial(drawn, f) for name, f in peers.items()},
            inputs=functools.partial(inputs, count),
            chain=chain,
            agree=among_largest,
            nbytes=4.0 * count * vocabulary,
        )


def _tuple(make: Callable[[], Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(make())
