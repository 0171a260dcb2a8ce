# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of weights per second of one request's decoding, against a jitted read of as many bytes.

A random Llama of 0.5 billion parameters (`random_llamas`), in float32 and with all matrices but the
embedding in int8. `engine` are the steps of `Engine.generate`: a completion of 25 tokens less one
of 1, over 24. `bare` is a jitted step of the same model over the same operations, with the tokens
on the device: the limit of the model, without an engine. The read takes the maximum of arrays of
the same sizes. The table of the embedding, of which a step reads one row, does not count.

With --cores 1 the process has one core and the figures are bytes per CPU second, which other
programs on the machine disturb least; on all cores they are bytes per second. --dtype names one.

int8 needs the wheel of packages/kernels/native (see native.py); its line says whether it was there.
"""

import argparse
import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from random_llamas import CONFIGS

import dovetail_kernels
import dovetail_models as models
import dovetail_quant as quant
from dovetail_infer import Engine, Sampling
from measure import Cost, cost, report, rounds

CONFIG = CONFIGS["0.5B"]
DTYPES = ("float32", "int8")
NATIVE = importlib.util.find_spec("dovetail_kernels_cpu") is not None
PAGE, PROMPT, NEW, REPEATS = 16, 32, 24, 5


def read_by_a_step(model: nnx.Module) -> list[Any]:
    """The arrays of which a step reads all."""
    table = model.embed.embedding[...]
    return [x for x in jax.tree.leaves(nnx.state(model)) if x is not table]


def reader(arrays: list[Any]) -> Callable[[], Any]:
    """A program that reads as many bytes, in arrays of float32 of the same sizes."""
    given = [jnp.ones(x.nbytes // 4, jnp.float32) for x in arrays]
    read = jax.jit(lambda given: [jnp.max(x) for x in given])
    return lambda: jax.block_until_ready(read(given))


def bare(model: nnx.Module) -> Callable[[], Any]:
    """One step of a request: the pages stay on the device, and so does its token."""
    graphdef, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state)
    columns = -(-(PROMPT + NEW) // PAGE)
    table = jnp.arange(columns, dtype=jnp.int32)[None]
    starts, length = jnp.array([0, 1], jnp.int32), jnp.array([PROMPT + 1], jnp.int32)

    def attend(
        q: Any, k: Any, v: Any, *, kv: Any, window: Any, soft_cap: Any, **others: Any
    ) -> Any:
        kv = dovetail_kernels.paged_write(kv, k[0], v[0], slots=length - 1)
        out = dovetail_kernels.paged_attention(
            q[0],
            kv,
            page_table=table,
            kv_lengths=length,
            q_starts=starts,
            window=window,
            soft_cap=soft_cap,
            scale=others["scale"],
        )
        return out[None], kv

    @functools.partial(jax.jit, donate_argnums=1)
    def step(leaves: list[Any], pages: list[Any], token: Any) -> Any:
        merged: Any = nnx.merge(graphdef, jax.tree.unflatten(tree, leaves))
        x, pages = merged.features(
            token[None],
            positions=(length - 1)[None],
            segment_ids=jnp.ones((1, 1), jnp.int32),
            attention=attend,
            kv=pages,
        )
        return jnp.argmax(merged.head(x[0]), axis=-1).astype(jnp.int32), pages

    heads = CONFIG.layers[0].attention
    shape = (columns, 2, PAGE, heads.kv_heads, heads.head_dim)
    held = [jnp.ones(1, jnp.int32), [jnp.zeros(shape) for _ in CONFIG.layers]]

    def steps() -> None:
        for _ in range(NEW):
            held[:] = step(leaves, held[1], held[0])
        jax.block_until_ready(held)

    return steps


def engine(model: nnx.Module) -> Callable[[], Cost]:
    """The cost of a step of decoding."""
    built = Engine(
        model, operations=dovetail_kernels, max_rows=1, page_size=PAGE, max_length=PROMPT + NEW + 1
    )
    rng = np.random.default_rng(0)

    def step() -> Cost:
        prompt = rng.integers(0, CONFIG.vocab_size, PROMPT).tolist()
        both = []
        for tokens in (1, NEW + 1):
            sampling = Sampling(max_tokens=tokens, temperature=0, ignore_eos=True)
            # The second finds its prompt in the prefix cache, but for the last page.
            both.append(cost(lambda s=sampling: built.generate([prompt], s)))
        return Cost(*((long - short) / NEW for short, long in zip(*both, strict=True)))

    return step


def contest(dtype: str, model: Any, *, one_core: bool) -> None:
    """Prints a line for the engine and one for the bare step."""
    arrays = read_by_a_step(model)
    nbytes = sum(x.nbytes for x in arrays)
    read, steps = reader(arrays), bare(model)
    calls = {
        "engine": engine(model),
        "bare": lambda: Cost(*(total / NEW for total in cost(steps))),
        "read": lambda: cost(read),
        "again": lambda: cost(read),
    }
    results = rounds(calls, repeats=REPEATS)
    clock = "cpu_s" if one_core else "wall_s"
    rates = {name: [nbytes / getattr(c, clock) for c in costs] for name, costs in results.items()}
    for name in ("engine", "bare"):
        report(
            f"0.5B one row, {dtype}{', one core' * one_core}, {name}",
            metric=f"weight_bytes_per_{clock}",
            unit="bytes/s",
            values=rates[name],
            peer="a jitted read of as many bytes",
            peer_values=rates["read"],
            peer_again=rates["again"],
            best_ratio=max(rates[name]) / max(rates["read"]),
            weight_bytes=nbytes,
            native=NATIVE if dtype == "int8" else None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    os.sched_setaffinity(0, cores)  # before JAX makes its threads
    for dtype in options.dtype or DTYPES:
        model: Any = models.init(CONFIG, seed=0)
        if dtype == "int8":
            model = quant.apply(model, quant.plan(model, [(("**", "embed"), quant.Spec())]))
        contest(dtype, model, one_core=len(cores) == 1)


if __name__ == "__main__":
    main()
