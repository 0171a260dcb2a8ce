# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""From an empty process to one finished training step of a 5 M Llama on this CPU, against MaxText.

Ours is a program with `Trainer.fit`; MaxText's is its own command with steps=1 on synthetic data,
without checkpoints, as fast as its options were found to make it. In both the step must have
ended. Layers are scanned in both, which compiles sooner. Nothing is cached between processes. In
the environment of `maxtext_step.py`:

    PYTHONPATH=scripts python packages/stack/benchmarks/maxtext_first_step.py
"""

import importlib.util
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Cost, report, rounds

REPEATS = 3
ROWS, LENGTH, VOCAB = 8, 256, 4096
OURS = f"""
import numpy as np
import optax

from dovetail_kernels import attention
from dovetail_models import init, llama
from dovetail_train import Console, Trainer, lm_loss

config = llama(vocab_size={VOCAB}, embed=256, depth=6, heads=8, kv_heads=4, mlp=704)
ids = np.random.default_rng(0).integers(0, {VOCAB}, ({ROWS}, {LENGTH + 1}), np.int32)
mask = np.ones(({ROWS}, {LENGTH}), np.float32)
batch = {{"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": mask}}
trainer = Trainer(optax.adamw(1e-3, b2=0.95), lm_loss(attention=attention))
model = init(config, seed=0).configure(scan=True)
result = trainer.fit(model, [batch], steps=1, sinks=[Console(every=1)])
print("loss:", result.scalars["loss"])
"""
THEIRS = {
    "run_name": "bench",
    "hardware": "cpu",
    "dataset_type": "synthetic",
    "enable_checkpointing": "false",
    "enable_goodput_recording": "false",
    "log_config": "false",
    "skip_jax_distributed_system": "true",
    "decoder_block": "llama2",
    "base_emb_dim": 256,
    "base_num_decoder_layers": 6,
    "base_num_query_heads": 8,
    "base_num_kv_heads": 4,
    "head_dim": 32,
    "base_mlp_dim": 704,
    "mlp_activations": '["silu","linear"]',
    "vocab_size": VOCAB,
    "max_target_length": LENGTH,
    "per_device_batch_size": ROWS,
    "dtype": "float32",
    "weight_dtype": "float32",
    "attention": "dot_product",
    "packing": "false",
    "remat_policy": "minimal",
    "scan_layers": "true",
    "opt_type": "adamw",
    "steps": 1,
}


def maxtext(directory):
    """The command that trains for one step and writes below `directory`."""
    spec = importlib.util.find_spec("maxtext")
    base = Path(spec.origin).parent / "configs" / "base.yml"
    options = THEIRS | {"base_output_directory": directory}
    module = "maxtext.trainers.pre_train.train"
    return [sys.executable, "-m", module, str(base), *(f"{k}={v}" for k, v in options.items())]


def process(command):
    """The cost of a process and its children. A first loss must be that of a random model."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    losses = re.findall(r"\bloss: ([\d.]+)", done.stdout + done.stderr)
    if done.returncode or not losses or abs(float(losses[-1]) - math.log(VOCAB)) > 1:
        raise SystemExit(f"no step was made: exit {done.returncode}, losses {losses}")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s=wall, cpu_s=spent)


def main():
    with tempfile.TemporaryDirectory() as directory:
        theirs = maxtext(directory)
        commands = {"ours": [sys.executable, "-c", OURS], "theirs": theirs, "again": theirs}
        found = rounds({k: (lambda c=c: process(c)) for k, c in commands.items()}, repeats=REPEATS)
    for metric in ("wall_s", "cpu_s"):
        values = {who: [getattr(c, metric) for c in costs] for who, costs in found.items()}
        report(
            f"process to one trained step, Llama 5M {ROWS}x{LENGTH}",
            metric=metric,
            unit="s",
            values=values["ours"],
            peer="maxtext",
            peer_values=values["theirs"],
            peer_again=values["again"],
        )


if __name__ == "__main__":
    main()
