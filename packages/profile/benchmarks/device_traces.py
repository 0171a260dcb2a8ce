# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces of this device: training steps, steps of the engine, calls of a bundle.

Each is kept with its page and its tables in build/accelerator/traces, so that it can become a
fixture, and be read by XProf too. A line has the shares of the busy time that join an instruction,
a line of source and a module path; a capture without any work of the device fails.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dovetail_kernels
from dovetail_infer import Engine, Sampling
from dovetail_models import cast, init, llama
from dovetail_profile import OpRow, capture, costs
from dovetail_serve import Tensor, export, load
from dovetail_train import Precision, Trainer, lm_loss
from measure import ROOT, report

FOLDER = ROOT / "build" / "accelerator" / "traces"
Sizes = Mapping[str, int]


def training(sizes: Sizes, rows: int, length: int, steps: int) -> None:
    """Traces steps of a Llama in bfloat16, and compares its FLOPs with XLA's."""
    config = llama(**sizes)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (rows, length + 1), np.int32)
    mask = np.ones((rows, length), np.float32)
    batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": mask}
    loss = lm_loss(attention=dovetail_kernels.attention)
    trainer = Trainer(optax.adamw(1e-3), loss, precision=Precision(compute="bfloat16"))
    state = trainer.init(init(config, seed=0))
    state, _ = trainer.step(state, batch)  # compiles

    def run() -> None:
        nonlocal state
        for i in range(steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                state, _ = trainer.step(state, batch)
        jax.block_until_ready(state)

    compiled = trainer.program(init(config, seed=0), batch).compile()
    ours = sum(row.flops or 0.0 for row in costs(compiled, loops="once"))
    _kept("training", run, flops=ours, flops_of_xla=compiled.cost_analysis()["flops"])


def engine(sizes: Sizes, rows: int, length: int, steps: int) -> None:
    """Traces an engine that decodes `steps` tokens of each of `rows` prompts."""
    config = llama(**sizes)
    prompts = np.random.default_rng(0).integers(0, config.vocab_size, (rows, length // 2)).tolist()
    model = cast(init(config, seed=0), jnp.bfloat16)
    operations = dovetail_kernels
    with Engine(model, operations=operations, max_rows=rows, max_length=length) as decoder:
        sampling = Sampling(max_tokens=steps, temperature=0)
        decoder.generate(prompts, sampling)  # compiles
        _kept("engine", lambda: decoder.generate(prompts, sampling))


def bundle(sizes: Sizes, rows: int, length: int, steps: int) -> None:
    """Traces calls of a bundle: an MLP of the decoder's width."""
    width = sizes["embed"]
    weights = np.random.default_rng(0).normal(0, width**-0.5, (4, width, width)).astype(np.float32)
    x = np.ones((rows, width), np.float32)

    def network(params: Mapping[str, jax.Array], *, x: jax.Array) -> dict[str, jax.Array]:
        for i in range(len(weights)):
            with jax.named_scope(f"layers.{i}"):
                x = jnp.tanh(x @ params["w"][i])
        return {"y": x}

    made = export(
        network,
        {"w": weights},
        inputs={"x": Tensor(("batch", width), "float32")},
        example={"x": x},
        batch_sizes=(rows,),
    )
    with tempfile.TemporaryDirectory() as place:
        made.save(Path(place, "1"))
        model = load(Path(place, "1"))
    model(x=x)
    _kept("bundle", lambda: [model(x=x) for _ in range(steps)])


def _kept(name: str, run: Callable[[], object], **conditions: float) -> None:
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    with capture(keep=folder) as p:
        run()
    for file in ("report.html", "profile.json"):
        p.save(Path(folder, file))
    table = p.ops()
    busy = sum(table.column("self_us"))
    if not busy:
        raise RuntimeError(f"a trace must have runs of instructions, got none: {p.warnings}")

    def share(counts: Callable[[OpRow], bool]) -> float:
        return sum(row.self_us for row in table if counts(row)) / busy

    report(
        f"busy time of {name} that joins an instruction",
        metric="share",
        unit="of the time",
        values=[share(lambda row: row.opcode != "?")],
        source=share(lambda row: bool(row.source)),
        scope=share(lambda row: bool(row.scope)),
        busy_us=busy,
        runs=sum(table.column("calls")),
        warnings=list(p.warnings),
        **conditions,
    )
