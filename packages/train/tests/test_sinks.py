# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Console, Jsonl, Trainer, read_jsonl


def test_console_prints_every_nth_step_with_the_rate_since_the_last_line(capsys):
    console = Console(every=3)
    for step in range(4):
        # 1, 2 and 4 seconds for 10 tokens each: 30 tokens in 7 seconds, not the mean of the rates.
        seconds = 2.0**step / 2
        rates = {"step_time_s": seconds, "tokens_per_s": 10 / seconds, "mfu": 0.7 / seconds}
        console.write(step, {"loss": 3.0 - step, **(rates if step else {})})
    assert (
        capsys.readouterr().out == "step 0  loss 3\nstep 3  loss 0  tokens_per_s 4.286  mfu 0.3\n"
    )


def test_console_counts_stalls_among_the_seconds_and_shows_their_sum(capsys):
    console = Console(every=2)
    for step, stall in enumerate((0.0, 5.0, 1.0, 0.0, 0.0)):
        console.write(step, {"loss": 1.0, "step_time_s": 1.0, "stall_s": stall, "rows_per_s": 8.0})
    assert capsys.readouterr().out.splitlines() == [
        "step 0  loss 1  rows_per_s 8",
        "step 2  loss 1  rows_per_s 2  stall_s 6",
        "step 4  loss 1  rows_per_s 8",
    ]


def test_console_prints_the_last_step_when_it_is_closed(capsys):
    console = Console(every=2)
    for step in range(2):
        console.write(step, {"loss": 3.0 - step, "step_time_s": 2.0, "rows_per_s": 8.0})
    assert capsys.readouterr().out == "step 0  loss 3  rows_per_s 8\n"
    console.close()
    assert capsys.readouterr().out == "step 1  loss 2  rows_per_s 8\n"
    console.close()
    assert capsys.readouterr().out == ""


def test_console_prints_every_evaluation(capsys):
    Console(every=50).write(7, {"eval/loss": 1.25})
    assert capsys.readouterr().out == "step 7  eval/loss 1.25\n"


def test_console_refuses_a_period_below_one():
    with pytest.raises(ValueError, match=r"must be at least 1, got every=0; write Console"):
        Console(every=0)


def test_each_line_is_on_disk_at_once(tmp_path):
    path = tmp_path / "deep" / "metrics.jsonl"
    Jsonl(path, now=lambda: 12.5).write(3, {"loss": 0.1, "eval/x": 2})
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == {
        "step": 3,
        "generation": 0,
        "time_s": 12.5,
        "loss": 0.1,
        "eval/x": 2.0,
    }


def test_the_last_generation_wins_for_a_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = Jsonl(path)
    for step in range(5):
        first.write(step, {"loss": float(step), "only_first": 1.0})
    second = Jsonl(path)
    second.write(2, {"loss": 20.0})
    second.write(3, {"loss": 30.0})
    second.write(3, {"eval/loss": 5.0})
    lines = read_jsonl(path)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["generation"] for line in lines] == [0, 0, 1, 1, 0]
    assert (lines[3]["loss"], lines[3]["eval/loss"]) == (30.0, 5.0)
    assert "only_first" not in lines[3]


def test_an_evaluation_before_the_save_outlives_the_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    Jsonl(path).write(2, {"eval/loss": 5.0, "loss": 19.0})
    second = Jsonl(path)
    second.write(2, {"loss": 20.0})
    (line,) = read_jsonl(path)
    assert (line["eval/loss"], line["loss"], line["generation"]) == (5.0, 20.0, 1)


def test_a_run_that_begins_again_at_zero_keeps_nothing_of_its_steps(tmp_path):
    path = tmp_path / "metrics.jsonl"
    Jsonl(path).write(0, {"loss": 1.0, "only_first": 1.0})
    Jsonl(path).write(0, {"loss": 2.0})
    assert "only_first" not in read_jsonl(path)[0]


def test_a_torn_last_line_neither_breaks_reading_nor_appending(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = Jsonl(path)
    whole.write(0, {"loss": 1.0})
    whole.write(1, {"loss": 2.0})
    data = path.read_bytes()
    for cut in range(data.index(b"\n") + 1, len(data)):
        path.write_bytes(data[:cut])
        assert [line["loss"] for line in read_jsonl(path)] == [1.0]
        Jsonl(path).write(1, {"loss": 3.0})
        assert [line["loss"] for line in read_jsonl(path)] == [1.0, 3.0]
        assert [line["generation"] for line in read_jsonl(path)] == [0, 1]


def test_numbers_that_json_lacks_are_null(tmp_path):
    Jsonl(tmp_path / "m.jsonl").write(0, {"a": math.nan, "b": math.inf, "c": 1.0})
    (line,) = read_jsonl(tmp_path / "m.jsonl")
    assert (line["a"], line["b"], line["c"]) == (None, None, 1.0)


def test_the_words_of_dovetail_runs_for_such_numbers_are_none(tmp_path):
    path = tmp_path / "metrics.jsonl"
    head = '{"step": 0, "generation": 0, "time_s": 1.5'
    path.write_text(f'{head}, "loss": "nan", "a": "inf", "b": "-inf", "c": 2.5}}\n')
    (line,) = read_jsonl(path)
    assert [line[name] for name in ("loss", "a", "b", "c")] == [None, None, None, 2.5]


def test_an_empty_file_has_no_steps(tmp_path):
    (tmp_path / "m.jsonl").touch()
    assert read_jsonl(tmp_path / "m.jsonl") == []
    Jsonl(tmp_path / "m.jsonl").write(0, {"loss": 1.0})
    assert read_jsonl(tmp_path / "m.jsonl")[0]["generation"] == 0


@pytest.mark.parametrize("bad", ["not json", '{"loss": 1}', "[1, 2]"])
def test_a_line_of_something_else_is_refused(tmp_path, bad):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 0, "generation": 0}\n' + bad + "\n")
    for read in (lambda: read_jsonl(path), lambda: Jsonl(path).write(0, {})):
        with pytest.raises(ValueError, match=r"must be a JSON.*m\.jsonl:2.*remove that line"):
            read()


class _Started:
    """Batches, a loss, a store and a sink: the order of the calls of each."""

    everywhere = True

    def __init__(self):
        self.calls = []

    def begin_activity(self, activity):
        self.calls.append(activity)

    def write(self, step, scalars):
        if "loss" in scalars:
            self.calls.append(step)

    def __iter__(self):
        return self

    def __next__(self):
        self.calls.append("a batch")
        return {"x": np.ones((2, 3), np.float32)}

    def loss(self, model, batch, *, key):
        self.calls.append("a trace")
        return jnp.sum(model(batch["x"]) ** 2), 2.0

    def get_state(self):
        return {}

    def set_state(self, state):
        pass

    def save(self, step, **items):
        pass

    def restore(self, **targets):
        self.calls.append("a restore")

    def wait(self):
        pass


@pytest.mark.capability("a sink is told of activities before the first step")
def test_each_activity_before_the_first_step_begins_once_and_before_its_work():
    all_of = _Started()
    model, trainer = nnx.Linear(3, 1, rngs=nnx.Rngs(0)), Trainer(optax.sgd(0.1), all_of.loss)
    trainer.fit(model, all_of, steps=3, sinks=[all_of], store=all_of)
    calls = [call for i, call in enumerate(all_of.calls) if call not in all_of.calls[:i]]
    expected = ["init", "restore", "a restore", "data", "a batch", "place"]
    assert calls == [*expected, "compile", "a trace", "step", 0, 1, 2]
    for activity in ("init", "restore", "data", "place", "compile", "step"):
        assert all_of.calls.count(activity) == 1
