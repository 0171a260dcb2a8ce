# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of supervised training and of DPO on this CPU, against TRL's trainers in torch.

The model is exported and opened by transformers, so both train equal weights on equal rows in
float32, with AdamW and a clipped norm; the losses of the first steps are compared before anything
is timed. Both run the loop that a user calls, `Trainer.fit` and `Trainer.train`, from the first
step to the last: TRL without gradient checkpointing, which is on by default and costs a forward
pass, and with fused AdamW. Ours has the attention of dovetail-kernels, as the recipes have it.

The process keeps to one core: torch's threads wait for each other by spinning, so that on a machine
with other work both its seconds and its CPU seconds would grow many times over.
"""

import dataclasses
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before torch and XLA count the cores

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from flax import nnx  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
)
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # noqa: E402

from dovetail_kernels import attention  # noqa: E402
from dovetail_models import Config, init, llama, save  # noqa: E402
from dovetail_train import Trainer, lm_loss  # noqa: E402
from dovetail_tune import TRAINED, Field, Frozen, Twin, dpo, token_logps  # noqa: E402
from measure import Cost, report, rounds  # noqa: E402

RATE = 1e-4
LOSSES = ("SFT", "DPO, reference as a field", "DPO, frozen twin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its batch, and how many steps of how many rounds are timed."""

    config: Config
    rows: int
    length: int
    steps: int
    repeats: int

    @property
    def prompt(self) -> int:
        """Ids of a prompt."""
        return self.length // 4

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """Rows 2i and 2i + 1 have one prompt; i32[rows, length + 1], without id 0."""
        shape, vocab = (self.rows, self.length + 1), self.config.vocab_size
        ids = np.random.default_rng(0).integers(1, vocab, shape, np.int32)
        ids[1::2, : self.prompt] = ids[0::2, : self.prompt]
        return ids

    def batch(self) -> dict[str, np.ndarray]:
        """The rows as dovetail-data makes them."""
        mask = np.ones((self.rows, self.length), np.float32)
        mask[:, : self.prompt - 1] = 0
        pair_ids = np.repeat(np.arange(self.rows // 2, dtype=np.int32), 2)
        ids = self.ids
        return {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": mask, "pair_ids": pair_ids}

    def examples(self, loss: str) -> Dataset:
        """The rows as TRL tokenizes them, once for each step of a round."""
        n, rows = self.prompt, self.ids.tolist()
        if loss == "SFT":
            labels = [[-100] * n + row[n:] for row in rows]
            columns = {"input_ids": rows, "labels": labels}
        else:
            columns = {
                "prompt_ids": [row[:n] for row in rows[::2]],
                "chosen_ids": [row[n:] for row in rows[::2]],
                "rejected_ids": [row[n:] for row in rows[1::2]],
            }
        return Dataset.from_dict({name: x * self.steps for name, x in columns.items()})


SMALL = llama(vocab_size=256, embed=64, depth=2, heads=4, kv_heads=4, mlp=160, tie=True)
LARGE = llama(vocab_size=32000, embed=640, depth=9, heads=10, kv_heads=5, mlp=1728, tie=True)
CASES = {
    "0.1M": Case(config=SMALL, rows=8, length=64, steps=20, repeats=9),
    "60M": Case(config=LARGE, rows=2, length=512, steps=1, repeats=3),
}


class Ours:
    """`Trainer.fit` over equal batches; each call of `run` begins with the first weights."""

    def __init__(self, model: nnx.Module, case: Case, loss: str):
        scorer = functools.partial(token_logps, attention=attention)
        self.batch, self.steps = case.batch(), case.steps
        trainable: Any = nnx.Param
        if loss == "SFT":
            objective = lm_loss(attention=attention)
        elif loss == "DPO, frozen twin":
            objective = dpo(reference=Frozen(), scorer=scorer)
            model, trainable = Twin(model, nnx.clone(model)), TRAINED
        else:
            objective = dpo(reference=Field(), scorer=scorer)
            rows = jax.jit(lambda batch: scorer(model, batch).logprob.sum(1))(self.batch)
            self.batch["ref_logps"] = np.asarray(rows)
        tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(RATE, weight_decay=0.0))
        self.trainer = Trainer(tx, objective, trainable=trainable, flops=1.0)
        self.model = model

    def run(self) -> Cost:
        self.losses: dict[int, float] = {}
        self.trainer.fit(self.model, self._batches(), steps=self.steps, sinks=[self])
        wall, cpu = self.began
        return Cost(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)

    def _batches(self) -> Iterator[Mapping[str, np.ndarray]]:
        self.began = time.perf_counter(), time.process_time()
        while True:
            yield self.batch

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if "loss" in scalars:
            self.losses[step] = scalars["loss"]


class _Clock(TrainerCallback):
    """The cost from the first step of a run to its last."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self.began = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wall, cpu = self.began
        self.cost = Cost(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


class _AsGiven:
    """Takes tokenized rows, in their order."""

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        return dataset

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[attr-defined]


class _Sft(_AsGiven, SFTTrainer):
    pass


class _Dpo(_AsGiven, DPOTrainer):
    pass


class Trl:
    """A trainer of TRL; each call of `run` continues with the weights of the one before."""

    def __init__(self, directory: Path, case: Case, loss: str):
        options: dict[str, Any] = {"precompute_ref_log_probs": loss == "DPO, reference as a field"}
        kind, config = (_Sft, SFTConfig) if loss == "SFT" else (_Dpo, DPOConfig)
        self.args = config(
            output_dir=str(directory / "trl"),
            per_device_train_batch_size=case.rows if loss == "SFT" else case.rows // 2,
            max_steps=case.steps,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            dataloader_pin_memory=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **({} if loss == "SFT" else options),
        )
        words = tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>")
        self.clock = _Clock()
        self.trainer = kind(
            AutoModelForCausalLM.from_pretrained(directory, attn_implementation="sdpa"),
            args=self.args,
            train_dataset=case.examples(loss),
            processing_class=PreTrainedTokenizerFast(
                tokenizer_object=tokenizers.Tokenizer(words), pad_token="<pad>", eos_token="<eos>"
            ),
            callbacks=[self.clock],
        )
        self.trainer.remove_callback(PrinterCallback)  # standard output is for the lines of results

    def run(self) -> Cost:
        self.trainer.train()
        history = self.trainer.state.log_history
        self.losses = {i: line["loss"] for i, line in enumerate(history) if "loss" in line}
        return self.clock.cost


def measure(name: str, case: Case, loss: str) -> None:
    model = init(case.config, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder))
        candidates = {
            "ours": Ours(model, case, loss),
            "trl": Trl(Path(folder), case, loss),
            "again": Trl(Path(folder), case, loss),
        }
        compile_s = candidates["ours"].run().wall_s
        candidates["trl"].run()
        losses = {who: [*candidates[who].losses.values()][:3] for who in ("ours", "trl")}
        # float32 through the layers in other orders of summation, then 2 updates. TRL rounds.
        np.testing.assert_allclose(losses["ours"], losses["trl"], rtol=2e-3, err_msg=loss)
        results = rounds({who: c.run for who, c in candidates.items()}, repeats=case.repeats)
    for metric in ("wall_s", "cpu_s"):
        per_step = {
            who: [getattr(c, metric) / case.steps for c in costs] for who, costs in results.items()
        }
        report(
            f"{loss}, Llama {name} {case.rows}x{case.length}, against TRL",
            metric=metric,
            unit="s/step",
            values=per_step["ours"],
            peer="trl, torch, transformers",
            peer_values=per_step["trl"],
            peer_again=per_step["again"],
            compile_s=compile_s,
            losses=losses["ours"],
            peer_losses=losses["trl"],
            cores_used=1,
            tokens_per_s=case.rows * case.length / statistics.median(per_step["ours"]),
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, case in CASES.items():
        for loss in LOSSES:
            measure(name, case, loss)
