# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import pytest

from dovetail_infer import Sampling, fold_seed
from dovetail_infer.batch import RefusedError, read

OPTIONS = Sampling(seed=7, temperature=0.5)


@pytest.fixture
def write(tmp_path):
    """A function: the file of these lines."""

    def written(*lines):
        file = tmp_path / "prompts.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return file

    return written


def test_options_of_a_line_replace_those_of_the_call(write):
    file = write(
        {"prompt": "a"},
        {"prompt": "b", "temperature": 0, "stop": ["x", "y"], "logit_bias": {"65": -1.5}},
        {"messages": [{"role": "user", "content": "c"}], "seed": 3, "max_tokens": 9},
    )
    first, second, third = read(file, OPTIONS, model="m")
    assert [r.index for r in (first, second, third)] == [0, 1, 2]
    assert first.sampling == Sampling(seed=7, temperature=0.5)
    assert second.sampling == Sampling(
        seed=fold_seed(7, prompt=1), temperature=0, stop=("x", "y"), logit_bias={65: -1.5}
    )
    assert third.sampling == Sampling(seed=3, temperature=0.5, max_tokens=9)
    assert third.source == {"messages": [{"role": "user", "content": "c"}]}


def test_seeds_of_lines_stay_in_their_range(write):
    requests = read(write({"prompt": "a"}, {"prompt": "b"}), Sampling(seed=2**64 - 1), model="")
    assert [r.sampling.seed for r in requests] == [2**64 - 1, fold_seed(2**64 - 1, prompt=1)]


def test_a_digest_is_that_of_prompt_options_and_model(write):
    file = write({"prompt": "a"}, {"prompt": "a", "seed": 7}, {"prompt": "b", "seed": 7})
    digests = [r.digest for r in read(file, OPTIONS, model="m")]
    assert digests[0] == digests[1] != digests[2]
    others = [{"top_k": 5}, {"seed": 8}, {"stop": "a"}]
    others = [dataclasses.replace(OPTIONS, **other) for other in others]
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


@pytest.mark.parametrize(
    "options, came",
    [({}, "seed=None"), ({"seed": 1, "adapter": 0, "kept": True}, "adapter=0, kept=True")],
)
def test_options_that_no_line_can_have_are_refused(write, options, came):
    with pytest.raises(ValueError, match=rf"must have a seed, and no .*, got {came}\. Use"):
        read(write({"prompt": "a"}), Sampling(**options), model="m")
