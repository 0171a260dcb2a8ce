# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import math
import threading

import numpy as np
import pytest

from dovetail_data import Bytes
from dovetail_infer import Completion, Sampling, TopLogprobs
from dovetail_stack import prompts
from dovetail_stack.prompts import RefusedError, described, digest_of, encode, generated, read

OPTIONS = {f.name: getattr(Sampling(), f.name) for f in dataclasses.fields(Sampling)}
OPTIONS = {name: OPTIONS[name] for name in prompts.OPTIONS} | {"seed": 7, "temperature": 0.5}


def completion(tokens, **changes):
    """A completion of these tokens, whose text and log-probabilities follow from them."""
    tokens = np.asarray(tokens, np.int32)
    zeros = np.zeros(len(tokens), np.float32)
    values = {
        "text": " ".join(map(str, tokens)),
        "tokens": tokens,
        "logprobs": zeros,
        "sampled_logprobs": zeros,
        "log_mass": zeros,
        "finish_reason": "length",
        "versions": np.zeros(len(tokens), np.int32),
        "seed": 0,
        "prompt_tokens": 1,
        "cached_tokens": 0,
    }
    names = {f.name for f in dataclasses.fields(Completion)}
    return Completion(**{**dict.fromkeys(names), **values, **changes})


@pytest.fixture
def write(tmp_path):
    """A function: the file of these lines."""

    def written(*lines):
        file = tmp_path / "prompts.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return file

    return written


def test_options_of_a_line_replace_those_of_the_command(write):
    file = write(
        {"prompt": "a"},
        {"prompt": "b", "temperature": 0, "stop": ["x", "y"], "logit_bias": {"65": -1.5}},
        {"messages": [{"role": "user", "content": "c"}], "seed": 3, "max_tokens": 9},
    )
    first, second, third = read(file, OPTIONS, model="m")
    assert [r.index for r in (first, second, third)] == [0, 1, 2]
    assert first.sampling == Sampling(seed=7, temperature=0.5)
    assert second.sampling == Sampling(
        seed=8, temperature=0, stop=("x", "y"), logit_bias={65: -1.5}
    )
    assert third.sampling == Sampling(seed=3, temperature=0.5, max_tokens=9)
    assert third.source == {"messages": [{"role": "user", "content": "c"}]}


def test_seeds_of_lines_stay_in_their_range(write):
    requests = read(
        write({"prompt": "a"}, {"prompt": "b"}), OPTIONS | {"seed": 2**64 - 1}, model=""
    )
    assert [r.sampling.seed for r in requests] == [2**64 - 1, 0]


def test_a_digest_is_that_of_prompt_options_and_model(write):
    file = write({"prompt": "a"}, {"prompt": "a", "seed": 7}, {"prompt": "b", "seed": 7})
    digests = [r.digest for r in read(file, OPTIONS, model="m")]
    assert digests[0] == digests[1] != digests[2]
    others = [{**OPTIONS, "top_k": 5}, {**OPTIONS, "seed": 8}, {**OPTIONS, "stop": "a"}]
    changed = [read(file, other, model="m")[0].digest for other in others]
    changed.append(read(file, OPTIONS, model="n")[0].digest)
    assert len({digests[0], *changed}) == 5


@pytest.mark.parametrize(
    "line, message",
    [
        ({"prompt": "a", "max_token": 3}, r'line 2 .* got "max_token": write "max_tokens"'),
        ({"prompt": "a", "id": 3}, r'line 2 .* got "id": leave it out, results have .* index'),
        ({"prompt": "a", "rule": 3}, r'line 2 .* keys of prompt, messages, .* got "rule"'),
        ({"prompt": "a", "top_p": 2}, r"line 2 .*: top_p must be .* in \(0, 1\], got top_p=2"),
        ({"prompt": "a", "top_k": "all"}, r"line 2 .*: top_k must be an integer >= 1, or None"),
        ({"prompt": "a", "ignore_eos": "no"}, "line 2 .*: ignore_eos must be true or false, got"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "line 2 .*: logit_bias must map token ids to"),
        ({"prompt": "a", "messages": []}, 'line 2 .* either "prompt" or "messages", got'),
        ({"text": "a"}, 'line 2 .* either "prompt" or "messages", got .*: write {"prompt"'),
        ("[1]", r'line 2 .* either "prompt" or "messages", got \[1\]'),
        ("", "line 2 .* must be JSON, got Expecting value"),
        ('{"prompt": "a"', "line 2 .* must be JSON, got .*: correct it"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(write, line, message):
    with pytest.raises(RefusedError, match=message) as refused:
        read(write({"prompt": "a"}, line), OPTIONS, model="m")
    assert refused.value.exit_code == 3


def test_an_empty_file_is_refused(write):
    with pytest.raises(RefusedError, match=r"must have a line, got an empty '.*': write"):
        read(write(), OPTIONS, model="m")


def test_prompts_begin_with_bos_and_messages_as_their_template_says(write, tmp_path):
    source = "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ add_generation_prompt }}"
    (tmp_path / "chat_template.jinja").write_text(source)
    chat = {"messages": [{"role": "user", "content": "b"}]}
    requests = read(write({"prompt": "a"}, chat, {"prompt": "cd"}), OPTIONS, model="m")
    ids = encode(requests, Bytes(), tmp_path, max_length=8, vocab_size=258)
    assert [i.tolist() for i in ids] == [[256, 97], [*b"<b>True"], [256, 99, 100]]
    wrong = r"line 2 of the prompts must .* 100 rows, got id 114 \('r'\): leave it out"
    with pytest.raises(RefusedError, match=wrong):
        encode(requests[1:], Bytes(), tmp_path, max_length=8, vocab_size=100)


@pytest.mark.parametrize(
    "line, message",
    [
        ({"prompt": "abcd"}, r"line 2 .* room for a token in the model's 5, got 5 tokens: write"),
        ({"prompt": 4}, "line 2 .*: a prompt without a template must be a string: got prompt of"),
        ({"prompt": "\ud800"}, "line 2 .*: text must be Unicode without lone surrogates"),
    ],
)
def test_a_prompt_that_no_request_can_have_is_refused(write, tmp_path, line, message):
    requests = read(write({"prompt": "a"}, line), OPTIONS, model="m")
    with pytest.raises(RefusedError, match=message):
        encode(requests, Bytes(), tmp_path, max_length=5, vocab_size=258)


class _Silent(Bytes):
    bos_id = None


def test_a_prompt_without_a_token_is_refused(write, tmp_path):
    requests = read(write({"prompt": ""}), OPTIONS, model="m")
    with pytest.raises(RefusedError, match=r"line 1 .* must have a token, got an empty prompt: "):
        encode(requests, _Silent(), tmp_path, max_length=5, vocab_size=258)


def test_windows_come_in_order_though_later_ones_end_first(write, monkeypatch):
    monkeypatch.setattr(prompts, "WINDOW", 2)
    requests = read(write(*({"prompt": str(i)} for i in range(11))), OPTIONS, model="m")
    last_done = threading.Event()

    def generate(ids, options):
        if 0 in ids:
            assert last_done.wait(120), "the last window must not wait for the first"
        if 10 in ids:
            last_done.set()
        return [completion([i, option.seed]) for i, option in zip(ids, options, strict=True)]

    windows = list(generated(generate, requests, range(11)))
    assert [len(window) for window in windows] == [2, 2, 2, 2, 2, 1]
    flat = [(r.index, c.tokens.tolist()) for window in windows for r, c in window]
    assert flat == [(i, [i, 7 + i]) for i in range(11)]


def test_so_many_windows_are_begun_before_the_oldest_is_taken(write, monkeypatch):
    for name, value in {"WINDOW": 1, "AHEAD": 3}.items():
        monkeypatch.setattr(prompts, name, value)
    requests = read(write(*({"prompt": str(i)} for i in range(20))), OPTIONS, model="m")
    begun = []

    def generate(ids, options):
        begun.append(ids[0])
        return [completion([i]) for i in ids]

    windows = generated(generate, requests, range(20))
    assert next(windows)[0][0].index == 0
    assert max(begun) < 3
    windows.close()
    assert max(begun) < 4


def test_a_failure_comes_through_and_stops_what_has_not_begun(write, monkeypatch):
    for name, value in {"WINDOW": 1, "WORKERS": 1}.items():
        monkeypatch.setattr(prompts, name, value)
    requests = read(write(*({"prompt": str(i)} for i in range(9))), OPTIONS, model="m")
    begun, failed = [], threading.Event()

    def generate(ids, options):
        begun.append(ids[0])
        if ids[0] == 1:
            raise RuntimeError("broken")
        if ids[0] == 2:
            assert failed.wait(120)
        return [completion([0])]

    windows = generated(generate, requests, range(9))
    next(windows)
    with pytest.raises(RuntimeError, match="broken"):
        next(windows)
    failed.set()
    for thread in threading.enumerate():
        if thread.name.startswith("dovetail-prompts"):
            thread.join(120)
    assert set(begun) <= {0, 1, 2}


def test_the_digest_of_a_model_is_that_of_its_files(tmp_path):
    for name in ("config.json", "model.safetensors", "chat_template.jinja"):
        (tmp_path / name).write_text("a")
    digests = [digest_of(tmp_path)]
    (tmp_path / "report.txt").write_text("beside the model")
    assert digest_of(tmp_path) == digests[0]
    for name in ("config.json", "model.safetensors", "chat_template.jinja"):
        (tmp_path / name).write_text("b")
        digests.append(digest_of(tmp_path))
    assert len(set(digests)) == 4


def test_numbers_are_the_same_in_float32_and_json_alone():
    rng = np.random.default_rng(0)
    logprobs = -rng.exponential(size=3).astype(np.float32)
    tops = rng.normal(size=(3, 2)).astype(np.float32)
    tokens = np.array([[5, 6], [7, -1], [8, 9]], np.int32)
    tops[1, 1] = -math.inf
    top = TopLogprobs(tokens=tokens, logprobs=tops, ranks=np.array([1, 4, 2], np.int32))
    prompt_logprobs = np.array([-0.1, -math.inf], np.float32)
    values = described(
        completion([5, 3, 9], logprobs=logprobs, top=top, prompt_logprobs=prompt_logprobs)
    )
    back = json.loads(json.dumps(values, allow_nan=False))
    assert np.array_equal(np.float32(back["logprobs"]), logprobs)
    assert back["prompt_logprobs"] == [-0.1, None]
    assert [step["rank"] for step in back["top"]] == [1, 4, 2]
    assert [step["tokens"] for step in back["top"]] == [[5, 6], [7], [8, 9]]
    assert np.array_equal(np.float32(back["top"][2]["logprobs"]), tops[2])
    assert len(json.dumps(back["logprobs"])) < 3 * 14  # not the digits of a double
    plain = described(completion([5]))
    assert plain.keys() == {"text", "tokens", "finish_reason", "stop", "seed", "prompt_tokens"}
    assert described(completion([], finish_reason="error", error="NaN"))["error"] == "NaN"
