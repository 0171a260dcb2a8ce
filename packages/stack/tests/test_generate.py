# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib
import dataclasses
import json
import random
import re
import subprocess
import sys

import pytest

from dovetail_data import Pretrained
from dovetail_data.tokenizing import tokenizer
from dovetail_infer import Sampling, fold_seed
from dovetail_models import load, save, untie
from dovetail_stack import cli
from dovetail_stack.commands import generate

LINES = [
    {"prompt": "def read("},
    {"prompt": "import ", "max_tokens": 5},
    {"prompt": "class A", "temperature": 0},
    {"prompt": "café 😀", "stop": ["e", "a"]},
    {"prompt": "import ", "seed": 11, "logprobs": 2},
    *({"prompt": f"x{i} = "} for i in range(9)),
]
BAR = re.compile(rb"generate: +(\d+%)")
HOT = ("--max-tokens", "9", "--max-rows", "4", "--temperature", "1.5", "--seed", "3")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
    return path


def line_of(source, file, out, *options):
    return ["generate", str(source), "--prompts", str(file), "--out", str(out), *HOT, *options]


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """The results of an uninterrupted command, and its summary."""
    folder = tmp_path_factory.mktemp("whole")
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
    assert cli.main(line_of(source, file, folder / "out.jsonl")) == 0
    return (folder / "out.jsonl").read_bytes()


def test_flags_are_the_options_of_sampling(source):
    line = ["generate", "RUN", "--prompt", "x"]
    args = cli.parser(line).parse(line)
    options = generate._options(args, source)
    assert Sampling(**options) == Sampling(max_tokens=128, temperature=0, seed=0)
    fields = {field.name for field in dataclasses.fields(Sampling)}
    others = {"rule", "adapter", "cache_salt", "kept", "priority", "deadline_s"}
    assert fields - set(options) == others
    line += ["--logit-bias", "5=-1.5", "--logit-bias", "6=-inf", "--stop", "a", "--stop", "b"]
    line += ["--stop-token-ids", "7", "8", "--ignore-eos", "--top-k", "4", "--min-p", "0.1"]
    options = generate._options(cli.parser(line).parse(line), source)
    assert options["logit_bias"] == {5: -1.5, 6: -float("inf")}
    assert (options["stop"], options["stop_token_ids"]) == (["a", "b"], [7, 8])
    assert (options["ignore_eos"], options["top_k"], options["min_p"]) == (True, 4, 0.1)


def test_a_directory_suggests_a_sampling(tmp_path, capsys):
    """It is shown, used when asked, and replaced by typed options."""
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "generation_config.json"

    def options(suggested, *typed):
        file.write_text(json.dumps(suggested))
        line = ["generate", "RUN", "--prompt", "x", *typed]
        made = Sampling(**generate._options(cli.parser(line).parse(line), tmp_path))
        return made, capsys.readouterr().err

    greedy = Sampling(max_tokens=128, temperature=0, seed=0)
    qwen = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    shown = "The directory suggests {}: pass --directory-sampling to use them.\n"
    all_three = shown.format("temperature 0.6, top-k 20, top-p 0.95")
    assert options(qwen) == (greedy, all_three)
    asked = dataclasses.replace(greedy, temperature=0.6, top_k=20, top_p=0.95)
    assert options(qwen, "--directory-sampling") == (asked, "")
    typed = ("--temperature", "0", "--top-p", "1")
    assert options(qwen, *typed) == (greedy, shown.format("top-k 20"))
    mixed = dataclasses.replace(asked, temperature=0, top_p=1)
    assert options(qwen, "--directory-sampling", *typed) == (mixed, "")
    # Without do_sample the likeliest token is taken, whatever else is named.
    for silent in ({}, {**qwen, "do_sample": False}, {"temperature": 0.6, "top_p": 0.9}):
        assert options(silent) == (greedy, "")
        assert options(silent, "--directory-sampling") == (greedy, "")
    penal = {"repetition_penalty": 1.05, "top_k": 0}
    assert options(penal)[1] == shown.format("repetition-penalty 1.05")
    warm, _ = options({"do_sample": True}, "--directory-sampling")
    assert warm.temperature == 1
    wrong = r"must suggest a sampling that is possible, got .*'top_p': 1.5.* correct the file"
    with pytest.raises(ValueError, match=wrong):
        options({"do_sample": True, "top_p": 1.5}, "--directory-sampling")


@pytest.mark.thorough("it compiles an engine")
@pytest.mark.capability("generating text by the command")
def test_a_file_has_the_results_of_its_lines_in_their_order(whole, source, capsys):
    results = [json.loads(line) for line in whole.splitlines()]
    assert [result["index"] for result in results] == list(range(len(LINES)))
    for i, (line, result) in enumerate(zip(LINES, results, strict=True)):
        assert result["prompt"] == line["prompt"]
        assert result["seed"] == line.get("seed", fold_seed(3, prompt=i))
        assert 1 <= len(result["tokens"]) <= line.get("max_tokens", 9)
        assert ("logprobs" in result) == ("logprobs" in line)
    assert results[1]["text"] != results[4]["text"]  # equal prompts, other seeds
    assert len(results[4]["top"][0]["tokens"]) == 2
    seed = str(fold_seed(3, prompt=12))
    assert cli.main(["generate", str(source), "--prompt", "x7 = ", "--json", *HOT[:-1], seed]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone.items() <= results[12].items()


@pytest.mark.thorough
def test_a_finished_file_is_not_written_again(whole, source, file, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out.jsonl"
    out.write_bytes(whole)
    monkeypatch.setattr(generate, "_generate", None)  # nothing is loaded
    assert cli.main(line_of(source, file, out, "--json")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["skipped"], summary["written"], summary["tokens"]) == (len(LINES), 0, 0)
    assert out.read_bytes() == whole


@pytest.mark.thorough
def test_a_resumed_command_generates_what_is_missing(whole, source, file, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    out.write_bytes(whole[: len(whole) // 2])
    assert cli.main(line_of(source, file, out, "--json")) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["prompts"] == summary["skipped"] + summary["written"] == len(LINES)
    assert 0 < summary["skipped"] < len(LINES)
    assert f"{len(LINES)}/{len(LINES)}" in printed.err.split("\r")[-1]
    assert out.read_bytes() == whole


@pytest.mark.thorough
@pytest.mark.parametrize("change", [("--top-k", "5"), ("--seed", "4"), ("--invariant",)])
def test_other_options_are_refused(change, whole, source, file, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    out.write_bytes(whole)
    assert cli.main(line_of(source, file, out, *change)) == 3
    assert "a result of index=0 for another prompt, other options or" in capsys.readouterr().err
    assert out.read_bytes() == whole


def test_an_unknown_key_is_refused_before_anything_is_written(source, file, tmp_path, capsys):
    with file.open("a") as opened:
        opened.write('{"prompt": "x", "max_token": 3}\n')
    assert cli.main(line_of(source, file, tmp_path / "out.jsonl")) == 3
    error = capsys.readouterr().err
    assert f"line {len(LINES) + 1} of" in error
    assert 'write "max_tokens"' in error
    assert not (tmp_path / "out.jsonl").exists()


def test_a_prompt_longer_than_the_model_is_refused_before_anything_is_generated(
    source, file, tmp_path, capsys
):
    with file.open("a") as opened:
        opened.write(json.dumps({"prompt": "ab cd " * 24}) + "\n")
    assert cli.main(line_of(source, file, tmp_path / "out.jsonl")) == 3
    assert f"line {len(LINES) + 1} of the prompts must leave room" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_bytes() == b""


@pytest.mark.parametrize("line", [("--prompts", "f"), ("--prompt", "x", "--out", "f")])
def test_a_file_of_prompts_and_one_of_results_go_together(line, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["generate", "RUN", *line])
    assert stopped.value.code == 2
    assert "--prompts FILE and --out FILE go together" in capsys.readouterr().err


@pytest.mark.thorough
def test_an_error_is_written_and_told_and_the_others_go_on(source, tmp_path, capsys):
    model, tokenizer = untie(load(source)), Pretrained(source)
    (broken,) = tokenizer.encode(["@"])[0].ids.tolist()
    embedding = model.embed.embedding
    embedding.set_value(embedding[...].at[broken].set(float("nan")))
    save(model, tmp_path / "hf", like=source)
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(f'{{"prompt": "{prompt}"}}\n' for prompt in ("a", "@", "b")))
    assert cli.main(line_of(tmp_path / "hf", file, out)) == 1
    assert "Results with an error: 1. To try again, delete their lines" in capsys.readouterr().err
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["finish_reason"] == "error" for r in results] == [False, True, False]
    assert ["error" in r for r in results] == [False, True, False]
    assert cli.main(["generate", str(tmp_path / "hf"), "--prompt", "@", *HOT]) == 1


@pytest.mark.slow
def test_a_command_killed_at_any_moment_resumes_to_the_same_bytes(source, file, tmp_path):
    # Log-probabilities are rounded otherwise in other company, but for --invariant.
    options = ("--invariant", "--max-rows", "4")
    assert cli.main(line_of(source, file, tmp_path / "whole.jsonl", *options)) == 0
    whole = (tmp_path / "whole.jsonl").read_bytes()
    out = tmp_path / "out.jsonl"
    line = [sys.executable, "-m", "dovetail_stack", *line_of(source, file, out, *options)]
    rng, sizes = random.Random(0), {0}
    for states in (1, 2, 1, 2):  # of the bar: its first, and that after new results
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        shown = b""
        while len(set(BAR.findall(shown))) < states and (char := process.stderr.read(1)):
            shown += char
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=rng.uniform(0, 1))
        process.kill()
        process.communicate()
        sizes.add(out.stat().st_size)
        assert whole.startswith(out.read_bytes())
    assert len(sizes) > 1  # at least one was killed after a result
    subprocess.run(line, check=True, capture_output=True)
    assert out.read_bytes() == whole


@pytest.mark.thorough("it compiles an engine")
def test_a_command_parses_the_tokenizer_once(source, capsys, monkeypatch):
    parsed, plain = [], tokenizer._plain  # each parsed tokenizer passes it
    monkeypatch.setattr(tokenizer, "_plain", lambda each: parsed.append(each) or plain(each))
    assert cli.main(["generate", str(source), "--prompt", "def ", *HOT]) == 0
    assert len(parsed) == 1
