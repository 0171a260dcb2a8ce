# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The hot programs, lowered for one GPU that is absent. Each function takes its devices.

As a program, `gpu_programs.py NAME ...` prints what XLA compiles to: launches, waits for the host,
bytes outside products, and temporaries.
"""

import functools
import importlib
import sys

import jax
import jax.numpy as jnp
from flax import nnx

import dovetail_kernels as kernels
import dovetail_quant as quant
from dovetail_cluster import compiled
from dovetail_cluster import devices as targets
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.testing import traceable_step
from dovetail_models import abstract, cast, llama
from dovetail_quant.matmul.choose import Auto
from dovetail_train import make_mesh

LLAMA = {"vocab_size": 128256, "embed": 2048, "depth": 16, "heads": 32, "kv_heads": 8, "mlp": 8192}
SMALL = {"vocab_size": 50304, "embed": 768, "depth": 12, "heads": 12, "kv_heads": 12, "mlp": 2048}
PAGE, LENGTH = 16, 2048  # of the engine's cache

shape = jax.ShapeDtypeStruct
# With cuDNN's library JAX traces its calls; the kernels ask for a GPU, since most have neither.
importlib.import_module("dovetail_kernels.attention.cudnn.dense")._beside_a_gpu = lambda: True


def _lowered(devices, function, *args, donate=()):
    """The function, traced as on the absent device, on arguments that lie there."""
    mesh = jax.sharding.Mesh(devices[:1], ("only",))
    whole = jax.sharding.NamedSharding(mesh, jax.P())
    placed = jax.tree.map(lambda a: shape(a.shape, a.dtype, sharding=whole), args)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return jax.jit(function, donate_argnums=donate).lower(*placed)


def _normals(*sizes, dtype="bfloat16"):
    return [shape(size, dtype) for size in sizes]


def loss(devices, *, tokens=8192, width=4096, vocabulary=131072, vocab_axis=1):
    """Cross-entropy of a head, with both gradients."""
    head = (width, vocabulary) if vocab_axis else (vocabulary, width)
    x, w = _normals((tokens, width), head)

    def total(x, w, labels):
        return kernels.linear_cross_entropy(x, w, labels, vocab_axis=vocab_axis).sum

    return _lowered(devices, jax.value_and_grad(total, (0, 1)), x, w, shape((tokens,), "int32"))


def attention(devices, *, packed, rows=2, length=4096, heads=16, kv_heads=16):
    """Causal attention with its gradients; packed rows hold four documents."""
    q, k, g = _normals(*[(rows, length, n, 128) for n in (heads, kv_heads, heads)])
    ids = shape((rows, length), "int32")

    def both(q, k, v, g, ids):
        given = {"segment_ids": ids} if packed else {}
        out, pull = jax.vjp(lambda *x: kernels.attention(*x, causal=True, **given), q, k, v)
        return out, pull(g)

    return _lowered(devices, both, q, k, k, g, ids)


def grouped(devices, *, gradients, experts=64, rows=16384, width=2048, out=1408):
    """The product of experts, or its gradients."""
    x, w, g = _normals((rows, width), (experts, width, out), (rows, out))

    def back(x, w, sizes, g):
        return jax.vjp(lambda x, w: kernels.grouped_matmul(x, w, sizes), x, w)[1](g)

    sizes = shape((experts,), "int32")
    if gradients:
        return _lowered(devices, back, x, w, sizes, g)
    return _lowered(devices, kernels.grouped_matmul, x, w, sizes)


def paged(devices, *, requests=128, longest=8192):
    """One decoding row for each request."""
    columns = longest // PAGE
    q, pool = _normals((requests, 32, 128), (requests * columns, 2, PAGE, 8, 128))

    def attend(q, pool, table, lengths):
        starts = jnp.arange(requests + 1, dtype=jnp.int32)
        return kernels.paged_attention(
            q, pool, page_table=table, kv_lengths=lengths, q_starts=starts
        )

    table, lengths = shape((requests, columns), "int32"), shape((requests,), "int32")
    return _lowered(devices, attend, q, pool, table, lengths)


def linear(devices, *, rows, spec=None, inputs=4096, outputs=14336):
    """A linear layer with weights in bfloat16, or in the codes of a spec."""

    def layer():
        made = nnx.Linear(
            inputs,
            outputs,
            use_bias=False,
            dtype=jnp.bfloat16,
            param_dtype=jnp.bfloat16,
            rngs=nnx.Rngs(0),
        )
        if spec is None:
            return made
        product = Auto(spec=spec, platform="gpu")
        return quant.apply(made, quant.plan(made, [("**", spec)]), matmul=product)

    graph, state = nnx.split(nnx.eval_shape(layer))
    x = shape((rows, inputs), "bfloat16")
    return _lowered(devices, lambda x, state: nnx.merge(graph, state)(x), x, state)


def engine(devices, *, rows, kind="greedy", depth=16):
    """A decoding step of the engine for a GPU, with one token a row."""
    config = llama(**LLAMA | {"depth": depth}, tie=True)
    step, given = traceable_step(
        cast(abstract(config), jnp.bfloat16),
        Bucket(tokens=rows, rows=rows, kind=kind, single=True),
        operations=kernels,
        max_length=LENGTH,
        page_size=PAGE,
    )
    return _lowered(devices, step, *given, donate=1)


def train(devices, *, sizes, rows, length):
    """A training step with AdamW in bfloat16."""
    folder = importlib.import_module("accelerator_step").ROOT / "packages/train/benchmarks"
    sys.path.append(str(folder))
    bench = importlib.import_module("device_training")
    config = llama(**sizes, tie=True)
    trainer = bench.trainer(
        config, rows, length, mesh=make_mesh(devices=devices[:1]), **bench.KERNELS
    )
    return trainer.program(abstract(config), bench.batch(config, rows, length))


INT4 = quant.Spec(weight="int4", group=128)
PROGRAMS = {
    "loss": loss,
    "loss of tied weights": functools.partial(
        loss, tokens=32768, width=768, vocabulary=50304, vocab_axis=0
    ),
    "attention": functools.partial(attention, packed=False),
    "attention, packed": functools.partial(attention, packed=True),
    "grouped": functools.partial(grouped, gradients=False),
    "grouped, gradients": functools.partial(grouped, gradients=True),
    "paged": paged,
    "linear, 1 row": functools.partial(linear, rows=1, spec=quant.Spec()),
    "linear, 8 rows": functools.partial(linear, rows=8, spec=quant.Spec()),
    "linear, 64 rows": functools.partial(linear, rows=64, spec=quant.Spec()),
    "linear by groups, 8 rows": functools.partial(linear, rows=8, spec=INT4),
    "engine, 2 rows": functools.partial(engine, rows=2),
    "engine, 8 rows": functools.partial(engine, rows=8),
    "engine, 64 rows": functools.partial(engine, rows=64),
    "engine, 64 rows drawn": functools.partial(engine, rows=64, kind="plain"),
    "train 124M": functools.partial(train, sizes=SMALL, rows=16, length=2048),
    "train 1.2B": functools.partial(train, sizes=LLAMA, rows=4, length=4096),
}


def main():
    """Prints a line for each named program, or for all."""
    for name in sys.argv[1:] or PROGRAMS:
        program = compiled(PROGRAMS[name], target=targets("NVIDIA H200"))
        print(f"{name}\n{program}", flush=True)
        for copy in program.widest_copies[:4]:
            print(f"    {copy}")


if __name__ == "__main__":
    main()
