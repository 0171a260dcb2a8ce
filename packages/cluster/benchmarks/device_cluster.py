# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One host with this device: faults that a job survives, and memory that `compiled` has foreseen.

The process of a step takes no device before its ranks have ended: a rank needs it.
"""

import functools
import math
import os
import pickle
import statistics
import sys
import time
from typing import Any

from dovetail_cluster import Elastic, compiled, devices
from dovetail_cluster.testing import survives
from measure import report

STEPS_A_FAULT = 4


def _train(ctx: Any, steps: int, size: int) -> tuple[str, str]:
    """Elementwise steps: their bits depend on no order of a sum and no choice of a product.

    Returns the platform of its device, and a digest of the last step's array.
    """
    import hashlib

    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(x, i):
        return x + jnp.sin(x * i)

    first, x = 0, jnp.linspace(0, 1, size)
    if os.path.exists("saved"):
        with open("saved", "rb") as file:
            first, x = pickle.load(file)
    for i in range(first, steps):
        x = step(x, i)
        with open("partial", "wb") as file:
            pickle.dump((i + 1, jax.device_get(x)), file)
        os.replace("partial", "saved")
        ctx.progress.write(i)
        if ctx.stop(i):
            break
    return jax.devices()[0].platform, hashlib.sha256(jax.device_get(x).tobytes()).hexdigest()


def faults(count: int, size: int, stall_s: float) -> None:
    """Prints the seconds from a fault to the next step, once the values are those without faults.

    Raises:
        RuntimeError: The ranks ran on another platform than this process.
    """
    elastic = Elastic(stall_s=stall_s, budget={"crash": 10, "stall": 10, "exception": 2})
    found = survives(
        _train,
        STEPS_A_FAULT * count,
        size,
        hosts=1,
        devices_per_host=None,
        faults=count,
        elastic=elastic,
    )
    import jax  # after the ranks: this process may take the device now

    platform, _ = found.broken.value
    if platform != jax.default_backend():
        raise RuntimeError(f"ranks must run on {jax.default_backend()}, got {platform}")
    report(
        f"{count} faults, one host",
        metric="wall_s",
        unit="s to the next step",
        values=[struck.recovery_s for struck in found.struck],
        median_s=statistics.median(struck.recovery_s for struck in found.struck),
        kinds=[struck.fault.kind for struck in found.struck],
        passed=count,
        failed=0,
    )


def _trainer(sizes: dict[str, int], rows: int, length: int, present: Any) -> tuple[Any, Any, Any]:
    import jax
    import optax

    from dovetail_models import abstract, llama
    from dovetail_train import Precision, Trainer, lm_loss, make_mesh

    config = llama(**sizes, kv_heads=sizes["heads"], tie=True)
    mesh = make_mesh(devices=present[:1], data=1)
    tx = optax.adamw(1e-3, b2=0.95, weight_decay=0.1)
    trainer = Trainer(tx, lm_loss(), mesh=mesh, precision=Precision(compute="bfloat16"))
    ids = jax.ShapeDtypeStruct((rows, length), "int32")
    batch = {"tokens": ids, "targets": ids, "mask": jax.ShapeDtypeStruct(ids.shape, "float32")}
    return trainer, abstract(config, mesh=mesh), batch


def build(present: Any, *, sizes: dict[str, int], rows: int, length: int) -> Any:
    """The step of a trainer by shapes, as `compiled` wants it."""
    trainer, model, batch = _trainer(sizes, rows, length, present)
    return trainer.program(model, batch)


def absent(sizes: dict[str, int], rows: int, length: int) -> None:
    """Prints the peak of a step compiled without this device, beside the one compiled and run here.

    Raises:
        RuntimeError: The program was refused, or its loss is not finite.
    """
    import jax
    import jax.numpy as jnp

    from dovetail_models import init, llama

    present = jax.devices()
    name = "CPU" if present[0].platform == "cpu" else present[0].device_kind
    shaped = functools.partial(build, sizes=sizes, rows=rows, length=length)
    begin = time.monotonic()
    foreseen = compiled(shaped, target=devices(name))
    print(f"compiled without it: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    if not foreseen.fits or foreseen.peak_bytes is None:
        raise RuntimeError(f"the step must fit, got {foreseen.reason}")
    here = shaped(present)
    sized = here.jit().lower(*here.args).compile().memory_analysis()
    print(f"compiled here: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    trainer, _, batch = _trainer(sizes, rows, length, present)
    given = {name: jnp.ones(x.shape, x.dtype) for name, x in batch.items()}
    state = trainer.init(init(llama(**sizes, kv_heads=sizes["heads"], tie=True), seed=0))
    for _ in range(3):
        state, metrics = trainer.step(state, given)
    if not math.isfinite(metrics.scalars["loss"]):
        raise RuntimeError(f"the loss must be finite, got {metrics.scalars['loss']}")
    stats = present[0].memory_stats() or {}  # none on a CPU
    report(
        f"step compiled for {name} without it, {rows}x{length}, bfloat16",
        metric="memory",
        unit="B",
        values=[foreseen.peak_bytes],
        temp_bytes=foreseen.temp_bytes,
        argument_bytes=foreseen.argument_bytes,
        here_temp_bytes=sized.temp_size_in_bytes,
        here_argument_bytes=sized.argument_size_in_bytes,
        peak_bytes=stats.get("peak_bytes_in_use"),
        compile_s=foreseen.compile_s,
        versions=dict(foreseen.versions),
    )
