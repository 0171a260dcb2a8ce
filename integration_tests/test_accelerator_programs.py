# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of the accelerator session at their full size, lowered for a GPU that is not here.

JAX asks the driver before it lowers cuDNN's attention. The kernels' outline stands for theirs, and
XLA's attention for the peer's.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator

import jax
import jax.export
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh

import accelerator_step
import dovetail_kernels as kernels
from device_timing import chained
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.step.layout import discover
from dovetail_infer.step.logits import State
from dovetail_infer.step.program import DeviceState, StepFunction
from dovetail_models import abstract, cast, llama
from dovetail_train import abstract_mesh

H100 = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="cuda")
TRAINING = "train.llama-125m"
# Their programs are those of the suites, of Orbax, of a bundle, and of processes that they start.
OTHERS = ("conformance", "cluster.", "save-restore", "llama-125m", "engine", "serve.")
CONTESTS = [name for name in accelerator_step.catalog() if not any(x in name for x in OTHERS)]


@contextlib.contextmanager
def on_hopper() -> Iterator[None]:
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=H100)):
        yield


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(autouse=True)
def without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs XLA's attention for jax.nn's cuDNN."""
    original = jax.nn.dot_product_attention

    def attend(q, k, v, *, implementation=None, **options):
        return original(q, k, v, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attend)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONTESTS)
def test_a_contest_lowers_for_a_gpu(name: str):
    step, function = accelerator_step.load(name)
    with on_hopper():
        contests = list(function(**step.full))
        assert contests
        if name == "kernels.attention":
            cases = " ".join(contest.case for contest in contests)
            assert all(impl in cases for impl in ("cudnn", "blocked", "mosaic"))
        for contest in contests:
            if "tokamax" in contest.case:
                continue  # it asks for the devices at hand as it is traced
            args = jax.eval_shape(contest.inputs)
            for one in (contest.ours, *contest.peers.values()):
                program = chained(one, contest.chain).trace(*args)
                assert "while" in program.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.capability("the training step with the kernels' attention and loss", on="cuda")
def test_the_training_step_lowers_for_a_gpu_with_cudnn():
    step, function = accelerator_step.load(TRAINING)
    sizes, rows, length = (step.full[key] for key in ("sizes", "rows", "length"))
    module = sys.modules[function.__module__]
    config = llama(**sizes, kv_heads=sizes["heads"], tie=True)
    mesh = abstract_mesh(1, device="H100")
    options = {"attention": kernels.attention, "cross_entropy": kernels.linear_cross_entropy}
    trainer = module.trainer(config, rows, length, mesh=mesh, **options)
    program = trainer.program(abstract(config), module.batch(config, rows, length))
    lowered = program.lower("cuda").as_text()
    assert "func.func public @main" in lowered
    outline = "@dovetail_kernels_outline_of_cudnn_attention"
    queries = f"tensor<{rows}x{length}x{sizes['heads']}x64xbf16>"
    for call in (f"{outline}(", f"{outline}_gradient("):
        assert [line for line in lowered.splitlines() if call in line and queries in line], call


@pytest.mark.parametrize("rows", [1, 64])
def test_a_decoding_step_of_the_engine_lowers_for_a_gpu(rows: int):
    step, _ = accelerator_step.load("infer.engine-bfloat16")
    config = llama(**step.full["sizes"], tie=True)
    model = cast(abstract(config), jnp.bfloat16)
    length = step.full["prompt"] + step.full["tokens"]
    page, pages = 16, 64 * length // 16
    with on_hopper():
        layout = discover(model, max_length=length, kv_dtype=jnp.bfloat16)
        graph, state = nnx.split(model)
        leaves, tree = jax.tree.flatten(state)
        function = StepFunction(
            graph=graph,
            tree=tree,
            operations=kernels,
            layout=layout,
            columns=length // page,
            max_rows=64,
            max_logprobs=0,
            adapters=False,
        )
        bucket = Bucket(tokens=rows, rows=rows, kind="plain")
        pools = tuple(
            jax.ShapeDtypeStruct((pages, *la.page_shape(page)), la.dtype) for la in layout.layers
        )
        slots = jax.ShapeDtypeStruct((64, config.vocab_size), jnp.float32)
        given = DeviceState(pools, jax.ShapeDtypeStruct((64,), jnp.int32), State(*[slots] * 4))
        vector = jax.ShapeDtypeStruct((function.packing(bucket).size,), jnp.int32)
        traced = jax.jit(function.of(bucket), donate_argnums=1).trace(tuple(leaves), given, vector)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert f"tensor<{pages}x{page}x2x8x64xbf16>" in text
    assert f"tensor<{pages}x{page}x2x8x64xf32>" not in text


def test_the_network_of_a_bundle_lowers_for_a_gpu():
    step, function = accelerator_step.load("serve.throughput")
    module, sizes = sys.modules[function.__module__], step.full["sizes"]
    rows, width, classes = step.full["batch_sizes"][-1], sizes["width"], sizes["classes"]
    kernels_of = dict(module.convolutions(sizes))
    assert len(kernels_of) == 53  # as in ResNet-50: 49 in its main path, and 4 shortcuts
    params = {k: jax.ShapeDtypeStruct(v, jnp.bfloat16) for k, v in kernels_of.items()}
    params["classifier"] = jax.ShapeDtypeStruct((32 * width, classes), jnp.bfloat16)
    images = jax.ShapeDtypeStruct((rows, sizes["image"], sizes["image"], 3), jnp.bfloat16)
    network = jax.jit(functools.partial(module.network, sizes))
    with on_hopper():
        program = jax.export.export(network, platforms=("cuda",))(params, images=images)
    assert program.out_avals[0].shape == (rows, classes)
    text = program.mlir_module()
    assert text.count("stablehlo.convolution") == 53
    assert f"tensor<{rows}x7x7x{32 * width}xbf16>" in text
