# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One AdamW step of Llamas of 5 and 60 M parameters on this CPU: the trainer against MaxText.

MaxText gets our weights, so that both lose the same; float32, its fastest of the remat policies and
scan settings that were tried. It runs on Python 3.12 alone and its extras are made for
accelerators, so this is apart from `nox -s bench`: an environment with jax 0.12, maxtext 0.2.5
without its extras, and what it then asks for (aqtp, drjax, grain, jinja2, ml-collections,
ml-goodput-measurement, omegaconf, pathwaysutils, pillow, pydantic, qwix, sympy, tensorboardX,
tokamax, transformers), and

    PYTHONPATH=scripts python packages/stack/benchmarks/maxtext_step.py
"""

import dataclasses
import os
import tempfile
import time

import jax
import maxtext
import numpy as np
import optax
from flax import nnx
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train import train as maxtext_train
from maxtext.utils import sharding, train_utils

from dovetail_kernels import attention
from dovetail_models import Config, flops, init, llama
from dovetail_train import Trainer, lm_loss
from measure import cost, report, rounds

REPEATS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its batch, and how many steps of a round are timed."""

    config: Config
    rows: int
    length: int
    steps: int

    def tokens(self):
        rng = np.random.default_rng(0)
        return rng.integers(0, self.config.vocab_size, (self.rows, self.length + 1), np.int32)


SIZES = {
    "5M": ({"vocab_size": 4096, "embed": 256, "depth": 6, "heads": 8, "kv_heads": 4}, 704),
    "60M": ({"vocab_size": 32000, "embed": 640, "depth": 9, "heads": 10, "kv_heads": 5}, 1728),
}
CASES = {
    "5M": Case(config=llama(**SIZES["5M"][0], mlp=704), rows=8, length=256, steps=2),
    "60M": Case(config=llama(**SIZES["60M"][0], mlp=1728), rows=2, length=512, steps=1),
}


class Ours:
    """The trainer of dovetail-train, with its guard and metrics, as a user would call it."""

    def __init__(self, model, case):
        tx = optax.adamw(1e-3, b2=0.95, weight_decay=0.1)
        self.trainer = Trainer(tx, lm_loss(attention=attention))
        self.state, ids = self.trainer.init(model), case.tokens()
        mask = np.ones((case.rows, case.length), np.float32)
        self.batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": mask}

    def step(self):
        self.state, metrics = self.trainer.step(self.state, self.batch)
        return metrics.scalars["loss"]

    def wait(self):
        jax.block_until_ready(self.state)


class MaxText:
    """Its jitted step, on its own state, with our weights."""

    def __init__(self, model, case, directory):
        config = _maxtext_config(case, directory)
        made = train_utils.setup_train_loop(config, None)
        shardings, self.mesh, state = made[2], made[4], made[-1]
        graph, self.state = nnx.split(state)
        parameters, shardings = sharding.maybe_update_params_sharding_with_opt(config, shardings)
        self.run, _ = train_utils.jit_train_and_eval_step(
            config,
            graph,
            self.mesh,
            self.state,
            shardings,
            maxtext_train.train_step,
            maxtext_train.eval_step,
            None,
            parameters,
        )
        _take_weights(self.state, model)
        ids, shape = case.tokens(), (case.rows, case.length)
        where = np.broadcast_to(np.arange(case.length, dtype=np.int32), shape)
        ones = np.ones(shape, np.int32)
        self.batch = {
            "inputs": ids[:, :-1],
            "inputs_position": where,
            "inputs_segmentation": ones,
            "targets": ids[:, 1:],
            "targets_position": where,
            "targets_segmentation": ones,
        }

    def step(self):
        with self.mesh:
            self.state, metrics = self.run(self.state, self.batch)
        return metrics["scalar"]["learning/loss"]

    def wait(self):
        jax.block_until_ready(self.state)


def _maxtext_config(case, directory):
    c, layer = case.config, case.config.layers[0]
    options = {
        "run_name": "bench",
        "base_output_directory": directory,
        "hardware": "cpu",
        "dataset_type": "synthetic",
        "enable_checkpointing": "false",
        "enable_goodput_recording": "false",
        "log_config": "false",
        "skip_jax_distributed_system": "true",
        "decoder_block": "llama2",
        "base_emb_dim": c.embed,
        "base_num_decoder_layers": len(c.layers),
        "base_num_query_heads": layer.attention.heads,
        "base_num_kv_heads": layer.attention.kv_heads,
        "head_dim": layer.attention.head_dim,
        "base_mlp_dim": layer.mlp.hidden,
        "mlp_activations": '["silu","linear"]',
        "normalization_layer_epsilon": c.norm.eps,
        "rope_max_timescale": int(layer.attention.rope.theta),
        "vocab_size": c.vocab_size,
        "max_target_length": case.length,
        "per_device_batch_size": case.rows,
        "dtype": "float32",
        "weight_dtype": "float32",
        "attention": "dot_product",
        "packing": "false",
        "remat_policy": "minimal",
        "scan_layers": "false",
        "opt_type": "adamw",
        "adam_b2": 0.95,
        "adam_weight_decay": 0.1,
        "gradient_clipping_threshold": 0,
        "learning_rate": 1e-3,
        "steps": 1000,
    }
    base = os.path.join(os.path.dirname(maxtext.__file__), "configs", "base.yml")
    return pyconfig.initialize(["train", base, *(f"{k}={v}" for k, v in options.items())])


def _take_weights(state, model):
    """MaxText's parameters become ours, in place of its own initialisation.

    Its queries are not scaled in attention but in their kernel.
    """
    decoder = state["model"]["decoder"]
    pairs = [
        (state["model"]["token_embedder"]["embedding"], model.embed.embedding, 1.0),
        (decoder["decoder_norm"]["scale"], model.norm.scale, 1.0),
        (decoder["logits_dense"]["kernel"], model.lm_head.kernel, 1.0),
    ]
    for i, layer in enumerate(model.layers):
        theirs = decoder[f"layers_{i}"]
        attn, mlp = theirs["self_attention"], theirs["mlp"]
        pairs += [
            (attn["query"]["kernel"], layer.attn.q.kernel, layer.attn.config.head_dim**-0.5),
            (attn["key"]["kernel"], layer.attn.k.kernel, 1.0),
            (attn["value"]["kernel"], layer.attn.v.kernel, 1.0),
            (attn["out"]["kernel"], layer.attn.o.kernel, 1.0),
            (mlp["wi_0"]["kernel"], layer.mlp.gate.kernel, 1.0),
            (mlp["wi_1"]["kernel"], layer.mlp.up.kernel, 1.0),
            (mlp["wo"]["kernel"], layer.mlp.down.kernel, 1.0),
            (theirs["pre_self_attention_layer_norm"]["scale"], layer.attn_norm.scale, 1.0),
            (theirs["post_self_attention_layer_norm"]["scale"], layer.mlp_norm.scale, 1.0),
        ]
    for variable, ours, factor in pairs:
        now = variable[...]
        value = factor * ours[...].reshape(now.shape)
        variable.set_value(jax.device_put(value, now.sharding, may_alias=False))


def first_losses(candidate):
    """(the losses of two steps, the seconds of the first of them, which compiles)."""
    start = time.perf_counter()
    first = float(candidate.step())
    return [first, float(candidate.step())], time.perf_counter() - start


def timed(candidate, steps):
    def run():
        for _ in range(steps):
            candidate.step()
        candidate.wait()

    return lambda: cost(run)


def measure(name, case):
    model = init(case.config, seed=0)
    with tempfile.TemporaryDirectory() as directory:
        candidates = {
            "dovetail": Ours(model, case),
            "maxtext": MaxText(model, case, directory),
            "maxtext again": MaxText(model, case, directory),
        }
    found = {who: first_losses(candidate) for who, candidate in candidates.items()}
    for who, (losses, _) in found.items():
        # The first loss, in float32 by other operations. Schedules of the rate differ after it.
        np.testing.assert_allclose(losses[0], found["dovetail"][0][0], rtol=1e-4, err_msg=who)
    timers = {who: timed(c, case.steps) for who, c in candidates.items()}
    results = rounds(timers, repeats=REPEATS)
    tokens = case.rows * case.length
    for metric in ("wall_s", "cpu_s"):
        per_step = {
            who: [getattr(c, metric) / case.steps for c in costs] for who, costs in results.items()
        }
        report(
            f"train step, Llama {name} {case.rows}x{case.length}, against MaxText",
            metric=metric,
            unit="s/step",
            values=per_step["dovetail"],
            peer="maxtext",
            peer_values=per_step["maxtext"],
            peer_again=per_step["maxtext again"],
            compile_s=found["dovetail"][1],
            peer_compile_s=round(found["maxtext"][1], 3),
            losses=found["dovetail"][0],
            peer_losses=found["maxtext"][0],
            gflop_per_step=round(flops(case.config, tokens=tokens, length=case.length) / 1e9, 2),
        )


def main():
    for name, case in CASES.items():
        measure(name, case)


if __name__ == "__main__":
    main()
