# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Templates of several kinds, and conversations encoded with `Bytes`."""

import numpy as np

from dovetail_data import Bytes, Chat, Template

TEXTS = {"bos": "<|bos|>", "eos": "<|eos|>"}
CHATML = Template(
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = Template(
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|head|>' + m.role + '<|end_head|>\n\n' }}"
    "{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content | trim + eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content | trim + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|end_head|>\n\n' }}{% endif %}",
    **TEXTS,
)
MISTRAL = Template(
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% elif m.role == 'assistant' %}"
    "{{ ' ' + m.content + eos_token }}{% else %}"
    "{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}",
    **TEXTS,
)
# Drops what was thought once the conversation goes on, as templates of reasoning models do.
FORGETFUL = Template(
    "{% for m in messages %}{{ m.role + ':' }}"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def turns(*texts):
    roles = ["user", "assistant"] * len(texts)
    return [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]


def encoded(template, messages, *, tokenizer=None, **options):
    chat = Chat(tokenizer or Bytes(), template=template, **options)
    (result,) = chat([{"messages": messages}])
    return result


def shown(document):
    """The text of a document of Bytes with what is learnt in brackets; ^ is bos and $ eos."""
    names = {256: "^", 257: "$"}
    tokens = [names.get(i, chr(i)) for i in document.arrays["tokens"].tolist()]
    mask = [0, *document.arrays["mask"].tolist(), 0]
    steps = np.diff(mask)
    pieces = [
        "[" * int(steps[i] == 1) + token + "]" * int(steps[i + 1] == -1)
        for i, token in enumerate(tokens)
    ]
    return "".join(pieces)
