# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One training step of a 70 B model on 4,096 TPU v5p that are absent: seconds and memory.

It needs dovetail-train, dovetail-models, dovetail-kernels and libtpu, and some 5 GB of memory. The
table itself goes to standard error.
"""

import resource
import sys
import time

from dovetail_cluster import compiled, devices
from measure import report

TARGET = devices("TPU v5p:16x16x16")
LIMIT_S, LIMIT_BYTES = 180, 6 * 2**30


def build(devices):
    import jax
    import optax

    from dovetail_kernels import attention
    from dovetail_models import Remat, abstract, llama
    from dovetail_train import Precision, Trainer, context_parallel, lm_loss, make_mesh

    config = llama(
        vocab_size=128256,
        embed=8192,
        depth=80,
        heads=64,
        kv_heads=8,
        mlp=28672,
        rope_theta=5e5,
        max_length=8192,
    )
    mesh = make_mesh(devices=devices, fsdp=512, tensor=8, allow_split_physical_axes=True)
    model = abstract(config, mesh=mesh).configure(scan=True, remat=Remat())
    loss = lm_loss(attention=context_parallel(attention))
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4))
    trainer = Trainer(tx, loss, mesh=mesh, precision=Precision(compute="bfloat16"))
    tokens = jax.ShapeDtypeStruct((512, 8192), "int32")
    return trainer.program(model, {"tokens": tokens, "targets": tokens, "mask": tokens})


def main() -> None:
    began = time.perf_counter()
    program = compiled(build, target=TARGET)
    wall_s = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(program, file=sys.stderr)
    report(
        f"step of 70 B parameters on {TARGET}",
        metric="wall_s",
        unit="s",
        values=[wall_s],
        compile_s=program.compile_s,
        limit_s=LIMIT_S,
        cpu_s=used.ru_utime + used.ru_stime,
        memory_bytes=used.ru_maxrss * 1024,
        limit_bytes=LIMIT_BYTES,
        fits=program.fits,
        peak_bytes=program.peak_bytes,
        bound_s=program.bound_s,
        collectives={k: sum(e.count for e in v) for k, v in program.collectives.items()},
        libtpu=program.versions.get("libtpu"),
    )


if __name__ == "__main__":
    main()
