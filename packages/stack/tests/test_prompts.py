# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_data import Bytes
from dovetail_infer import Sampling
from dovetail_infer.batch import read
from dovetail_stack.prompts import encode
from dovetail_stack.recipes.options import RefusedError


@pytest.fixture
def write(tmp_path):
    """A function: the file of these lines."""

    def written(*lines):
        file = tmp_path / "prompts.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return file

    return written


def test_prompts_begin_with_bos_and_messages_as_their_template_says(write, tmp_path):
    source = "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ add_generation_prompt }}"
    (tmp_path / "chat_template.jinja").write_text(source)
    chat = {"messages": [{"role": "user", "content": "b"}]}
    requests = read(write({"prompt": "a"}, chat, {"prompt": "cd"}), Sampling(seed=7), model="m")
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
    requests = read(write({"prompt": "a"}, line), Sampling(seed=7), model="m")
    with pytest.raises(RefusedError, match=message):
        encode(requests, Bytes(), tmp_path, max_length=5, vocab_size=258)


class _Silent(Bytes):
    bos_id = None


def test_a_prompt_without_a_token_is_refused(write, tmp_path):
    requests = read(write({"prompt": ""}), Sampling(seed=7), model="m")
    with pytest.raises(RefusedError, match=r"line 1 .* must have a token, got an empty prompt: "):
        encode(requests, _Silent(), tmp_path, max_length=5, vocab_size=258)
