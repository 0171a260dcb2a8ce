# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve DIR`, asked by the `openai` client, and `generate` of transformers."""

import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import openai
import pytest

pytestmark = pytest.mark.parity
transformers = pytest.importorskip("transformers")

NEW = 24
TEMPLATES = {
    "meta-llama/Llama-3.1-8B-Instruct": (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}<|eot_id|>"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    ),
    "Qwen/Qwen3-0.6B": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
}
MESSAGES = [
    {"role": "user", "content": "the mill"},
]


@pytest.fixture(scope="module", params=TEMPLATES)
def served(request, published, tmp_path_factory):
    """A directory with a chat template, and a client of the command that serves it."""
    given = published(request.param)
    path = tmp_path_factory.mktemp("served") / "hf"
    shutil.copytree(given.path, path)
    (path / "chat_template.jinja").write_text(TEMPLATES[request.param])
    line = [sys.executable, "-m", "dovetail_stack", "serve", str(path), "--http", "0"]
    line += ["--name", "tiny", "--max-rows", "2"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        matches = (re.search(r"serving at (http://[\d.:]+)", x) for x in process.stdout)
        url = next(match[1] for match in matches if match)
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield path, given, openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        process.terminate()


def test_completions_have_the_ids_of_generate(served, peer):
    path, given, client = served
    words = transformers.AutoTokenizer.from_pretrained(path)
    rng = np.random.default_rng(0)
    ids = [rng.integers(10, 200, n).tolist() for n in (1, 15, 16, 17, 33, 70)]
    prompts = [given.prompt, *ids]
    want = [peer(path, prompt, max_new_tokens=NEW) for prompt in prompts]
    options = {"model": "tiny", "max_tokens": NEW, "temperature": 0}
    answer = client.completions.create(prompt=prompts, logprobs=0, **options)
    assert want[0][-1] == given.end
    for choice, tokens in zip(answer.choices, want, strict=True):
        assert choice.logprobs.tokens == [words.decode([token]) for token in tokens]
        assert choice.text == words.decode(tokens, skip_special_tokens=True)
        assert choice.finish_reason == ("length" if len(tokens) == NEW else "stop")
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
    assert answer.usage.completion_tokens == sum(map(len, want))
    text = client.completions.create(prompt=given.text, **options)
    assert text.choices[0].text == answer.choices[0].text
    assert text.usage.prompt_tokens == len(given.prompt)


def test_a_chat_has_the_ids_of_its_template_and_of_generate(served, peer):
    path, _, client = served
    words = transformers.AutoTokenizer.from_pretrained(path)
    prompt = words.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    want = peer(path, prompt, max_new_tokens=NEW)
    options = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": NEW}
    answer = client.chat.completions.create(logprobs=True, **options)
    assert answer.usage.prompt_tokens == len(prompt)
    tokens = [token.token for token in answer.choices[0].logprobs.content]
    assert tokens == [words.decode([token]) for token in want]
    text = words.decode(want, skip_special_tokens=True)
    assert answer.choices[0].message.content == text
    stream = client.chat.completions.create(stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
