# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail eval`, as a user types it."""

import json
import re
import sys

import jax
import numpy as np
import pytest

from dovetail_data import Pretrained, Template
from dovetail_models import load
from dovetail_stack import cli

QUESTIONS = [
    {"prompt": "import", "choices": ["json", "os.path", "é"], "answer": 0},
    {"prompt": "def decode", "choices": ["(self)", ":", " s"], "answer": 2},
    {"prompt": "", "choices": ["class", "return None"], "answer": 1},
]


def answer_of(capsys, *typed):
    """The object that a command prints with --json."""
    assert cli.main([*map(str, typed), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *typed):
    """The exit code of a command, and what it says."""
    try:
        code = cli.main([*map(str, typed)])
    except SystemExit as stopped:
        code = stopped.code
    return code, capsys.readouterr().err


def written(file, lines):
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def log_softmax(model, ids):
    """Log-probabilities of the next id, float64, of ids padded to one of two shapes."""
    tokens = np.zeros((1, 24 if len(ids) <= 24 else 48), np.int32)
    tokens[0, : len(ids)] = ids
    logits = np.asarray(jax.jit(lambda m, t: m(t))(model, tokens)[0, : len(ids)], np.float64)
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def shares(model, cases):
    """acc and acc_norm of (ids of the context, [(text, ids) of each choice], answer)."""
    right = {"acc": 0, "acc_norm": 0}
    for context, choices, answer in cases:
        logps = []
        for _, ids in choices:
            table = log_softmax(model, [*context, *ids])
            at = np.arange(len(context) - 1, len(context) + len(ids) - 1)
            logps.append(table[at, ids].sum())
        lengths = np.array([len(text) for text, _ in choices])
        right["acc"] += int(np.argmax(logps) == answer)
        right["acc_norm"] += int(np.argmax(logps / lengths) == answer)
    return {name: count / len(cases) for name, count in right.items()}


@pytest.mark.capability("multiple choice by the command")
def test_choices_are_scored_as_by_numpy(source, tmp_path, capsys):
    model, tokenizer = load(source), Pretrained(source)

    def ids(text):
        return tokenizer.encode([text])[0].ids.tolist()

    cases, lines = [], []
    for right in range(3):  # every answer in turn, so that no constant is right
        for line in QUESTIONS:
            lines.append({**line, "answer": right % len(line["choices"])})
            context = [tokenizer.bos_id, *ids(line["prompt"])]
            whole = [[tokenizer.bos_id, *ids(f"{line['prompt']} {c}")] for c in line["choices"]]
            tails = [(c, x[len(context) :]) for c, x in zip(line["choices"], whole, strict=True)]
            cases.append((context, tails, lines[-1]["answer"]))
    file = written(tmp_path / "choices.jsonl", lines)
    scores = answer_of(capsys, "eval", source, "--choices", file, "--rows", 4)["choices"]
    want = shares(model, cases)
    assert {name: scores[name] for name in want} == pytest.approx(want)
    spread = np.sqrt(want["acc"] * (1 - want["acc"]) / (len(lines) - 1))
    assert scores["acc_stderr"] == pytest.approx(spread)
    assert (scores["questions"], scores["cut"]) == (9, 0)


@pytest.mark.thorough("as the fast test of prompts, with messages")
@pytest.mark.parametrize("named", [True, False])
def test_choices_after_messages_are_scored_as_by_numpy(talker, tmp_path, capsys, named):
    model, tokenizer = load(talker), Pretrained(talker)
    template = Template.chatml(tokenizer) if named else Template.load(talker)
    cases, lines = [], []
    for right in range(2):
        said = [{"role": "user", "content": f"{right}"}]
        text = template.render(said, add_generation_prompt=True).text
        choices = ["red", "one two"]
        context = tokenizer.encode_with_specials([text])[0].ids.tolist()
        tails = [(c, tokenizer.encode([c])[0].ids.tolist()) for c in choices]
        cases.append((context, tails, right))
        lines.append({"messages": said, "choices": choices, "answer": right})
    file = written(tmp_path / "choices.jsonl", lines)
    typed = ["eval", talker, "--choices", file, *(["--template", "chatml"] if named else [])]
    scores = answer_of(capsys, *typed)["choices"]
    want = shares(model, cases)
    assert {name: scores[name] for name in want} == pytest.approx(want)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (
            {"prompt": "a", "choices": ["b", "c"], "answer": 2},
            r"line 2 of .* index .* 0 to 1.*got 2",
        ),
        ({"prompt": "a", "choices": ["b"], "answer": 0}, "line 2 .*at least two texts"),
        ({"prompt": "a", "choices": ["b", ""], "answer": 0}, "line 2 .*at least two texts"),
        ({"prompt": 3, "choices": ["b", "c"], "answer": 0}, 'line 2 .*a text as "prompt"'),
        ({"choices": ["b", "c"], "answer": 0}, 'either "prompt" or "messages"'),
        ({"prompt": "a", "choises": ["b", "c"], "answer": 0}, 'got "choises"'),
        ({"prompt": "a", "choices": ["b" * 99, "c"], "answer": 0}, "choices of at most 24 tokens"),
        ({"messages": [], "choices": ["b", "c"], "answer": 0}, "--template chatml"),
    ],
)
def test_a_line_that_is_no_question_is_refused_before_the_model_is_loaded(
    source, tmp_path, capsys, monkeypatch, line, answer
):
    monkeypatch.setattr("dovetail_stack.recipes.engine.load", None)
    file = written(tmp_path / "choices.jsonl", [QUESTIONS[0], line])
    code, said = refused(capsys, "eval", source, "--choices", file)
    assert code in (1, 2, 3)
    assert re.search(answer, said), said


def test_options_that_do_not_fit_are_refused_before_the_model_is_loaded(
    source, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("dovetail_stack.recipes.engine.load", None)
    for typed, words in (
        ((), "a directory has no held-out text"),
        (("--pattern", "*.md"), "--pattern goes with --text"),
        (("--limit", "3"), "--limit goes with --tasks"),
        (("--text", tmp_path / "none"), "does not exist"),
        (("--text", tmp_path, "--rows", "0"), "--rows must be at least 1"),
        (("--text", tmp_path, "--length", "99"), "at most the 24 positions"),
        (("--text", tmp_path), "no file of text below"),
    ):
        code, said = refused(capsys, "eval", source, *typed)
        assert code != 0
        assert words in said
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    code, said = refused(capsys, "eval", source, "--tasks", "hellaswag")
    assert code == 1
    assert "pip install 'dovetail-stack[eval]'" in said


@pytest.fixture(scope="module")
def run(tmp_path_factory, files):
    """A run of four steps, with more held-out rows than are measured at a time."""
    out = tmp_path_factory.mktemp("eval") / "run"
    line = ["train", "pretrain", "--text", files[0], "--pattern", "*.py", "--out", out]
    line += [
        "--held-out",
        0.5,
        "--steps",
        4,
        "--embed",
        32,
        "--depth",
        1,
        "--length",
        32,
        "--global-batch",
        5,
    ]
    assert cli.main([*map(str, line), "--vocab-size", "290"]) == 0
    return out


@pytest.mark.thorough("trains a run")
@pytest.mark.capability("measuring text by the command")
def test_a_run_has_the_figures_of_its_training(run, capsys):
    told = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (last,) = [line for line in told if "eval/loss" in line and line["step"] == 4]
    score = answer_of(capsys, "eval", run)["text"]
    assert score["rows"] == 65  # 13 batches of 5 rows
    assert score["bits_per_byte"] == pytest.approx(last["eval/bits_per_byte"], rel=1e-5)
    assert score["loss"] == pytest.approx(last["eval/loss"], rel=1e-5)
    assert score["perplexity"] == pytest.approx(np.exp(score["loss"]))
    assert cli.main(["eval", str(run)]) == 0
    shown = capsys.readouterr()
    assert "the run's own held-out rows" in shown.err
    assert f"bits_per_byte        {score['bits_per_byte']:.4f}" in shown.out


@pytest.mark.thorough("trains a run")
def test_text_is_measured_whole_beside_compressors(run, tmp_path, capsys):
    file = tmp_path / "[a].txt"
    file.write_text("naïve = 1\n" * 50, encoding="utf-8")
    score = answer_of(capsys, "eval", run / "hf", "--text", file, "--length", 16)["text"]
    tokenizer, model = Pretrained(run / "hf"), load(run / "hf")
    ids = [tokenizer.bos_id, *tokenizer.encode([file.read_text()])[0].ids, tokenizer.eos_id]
    nats = 0.0
    for start in range(0, len(ids) - 1, 16):  # rows repeat the id at which a text is cut
        piece = [int(i) for i in ids[start : start + 17]]
        table = log_softmax(model, piece[:-1])
        nats -= table[np.arange(len(piece) - 1), piece[1:]].sum()
    assert score["tokens"] == len(ids) - 1
    size = len(file.read_bytes())
    assert score["bits_per_byte"] == pytest.approx(nats / np.log(2) / size, rel=1e-5)
    assert 0 < score["xz_bits_per_byte"] < 8


@pytest.mark.thorough("quantizes a model")
def test_a_quantized_model_is_measured(run, tmp_path, capsys):
    small = tmp_path / "small"
    assert cli.main(["quantize", str(run / "hf"), "--out", str(small)]) == 0
    capsys.readouterr()
    file = tmp_path / "a.txt"
    file.write_text("import json\n" * 30)
    scores = [
        answer_of(capsys, "eval", path, "--text", file)["text"]["loss"]
        for path in (run / "hf", small)
    ]
    assert scores[0] != scores[1]
    assert scores[0] == pytest.approx(scores[1], rel=0.02)  # 8 bits of a weight


@pytest.mark.thorough("loads lm-eval")
def test_tasks_of_a_folder_agree_with_choices(source, tmp_path, capsys, monkeypatch):
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    file = written(tmp_path / "choices.jsonl", QUESTIONS)
    task = {
        "task": "tiny",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}, "cache_dir": str(tmp_path / "c")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": name} for name in ("acc", "acc_norm")],
    }
    (tmp_path / "tiny.yaml").write_text(json.dumps(task))  # JSON is YAML
    options = ["--tasks", "tiny", "--include-path", tmp_path, "--choices", file]
    result = answer_of(capsys, "eval", source, *options)
    for name in ("acc", "acc_norm", "acc_stderr", "acc_norm_stderr"):
        assert result["tasks"]["tiny"][name] == pytest.approx(result["choices"][name])
    code, said = refused(capsys, "eval", source, "--tasks", "tinny", "--include-path", tmp_path)
    assert (code, "did you mean" in said and "tiny" in said) == (2, True), said
