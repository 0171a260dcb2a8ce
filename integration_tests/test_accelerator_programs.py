# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of the accelerator session at their full size, lowered for a GPU that is not here.

JAX asks the driver before it lowers cuDNN's attention. The kernels' outline stands for theirs, and
XLA's attention for the peer's.
"""

import functools
import sys

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

import accelerator_step
import dovetail_kernels as kernels
from device_timing import chained
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.testing import traceable_step
from dovetail_models import abstract, cast, llama
from dovetail_train import abstract_mesh

H100 = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="cuda")
HOPPER = AbstractMesh((), (), abstract_device=H100)
# Their programs are those of suites, a sweep, Orbax, a trainer, an engine, a bundle, and processes
# they start.
OTHERS = (
    "conformance",
    "kernels.tune",
    "cluster.",
    "save-restore",
    "train.",
    "llama-125m",
    "engine",
    "serve.",
    "profile.",
)
CONTESTS = [name for name in accelerator_step.catalog() if not any(x in name for x in OTHERS)]


@pytest.fixture(autouse=True)
def without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs XLA's attention for jax.nn's cuDNN, and restores the path that `load` extends."""
    original = jax.nn.dot_product_attention

    def attend(q, k, v, *, implementation=None, **options):
        return original(q, k, v, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONTESTS)
def test_a_contest_lowers_for_a_gpu(name: str):
    step, function = accelerator_step.load(name)
    with jax.sharding.use_abstract_mesh(HOPPER):
        contests = list(function(**step.full))
        assert contests
        if name == "kernels.attention":
            cases = " ".join(contest.case for contest in contests)
            assert all(impl in cases for impl in ("cudnn", "blocked", "mosaic"))
        for contest in contests:
            args = jax.eval_shape(contest.inputs)
            for one in (contest.ours, *contest.peers.values()):
                program = chained(one, contest.chain).trace(*args)
                assert "while" in program.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.capability("the training step with the kernels' attention and loss", on="cuda")
def test_the_training_step_lowers_for_a_gpu_with_cudnn():
    step, function = accelerator_step.load("train.llama-125m")
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


@pytest.mark.parametrize("kind", ["greedy", "plain"])
def test_a_decoding_step_of_the_engine_lowers_for_a_gpu(kind):
    step, _ = accelerator_step.load("infer.engine-bfloat16")
    config = llama(**step.full["sizes"], tie=True)
    rows, page = max(step.full["rows"]), 16
    length = step.full["prompt"] + step.full["tokens"]
    with jax.sharding.use_abstract_mesh(HOPPER):
        function, given = traceable_step(
            cast(abstract(config), jnp.bfloat16),
            Bucket(tokens=rows, rows=rows, kind=kind, single=True),
            operations=kernels,
            max_length=length,
            page_size=page,
        )
        traced = jax.jit(function, donate_argnums=1).trace(*given)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@__cudnn$fmhaSoftmax(") == len(config.layers)  # attention of each layer
    pool = f"tensor<{rows * length // page}x2x{page}x8x64x"
    assert f"{pool}bf16>" in text
    assert f"{pool}f32>" not in text  # no copy in a wider dtype
    assert "stablehlo.case" not in text  # where the host would wait for the device


def test_the_network_of_a_bundle_lowers_for_a_gpu():
    step, function = accelerator_step.load("serve.throughput")
    module, sizes = sys.modules[function.__module__], step.full["sizes"]
    rows, width, classes = step.full["batch_sizes"][-1], sizes["width"], sizes["classes"]
    params = {k: jax.ShapeDtypeStruct(v, jnp.bfloat16) for k, v in module.convolutions(sizes)}
    params["classifier"] = jax.ShapeDtypeStruct((32 * width, classes), jnp.bfloat16)
    images = jax.ShapeDtypeStruct((rows, sizes["image"], sizes["image"], 3), jnp.bfloat16)
    network = jax.jit(functools.partial(module.network, sizes))
    with jax.sharding.use_abstract_mesh(HOPPER):
        program = jax.export.export(network, platforms=("cuda",))(params, images=images)
    assert program.out_avals[0].shape == (rows, classes)
    # As in ResNet-50: 49 convolutions in its main path, and 4 shortcuts.
    assert program.mlir_module().count("stablehlo.convolution") == 53
