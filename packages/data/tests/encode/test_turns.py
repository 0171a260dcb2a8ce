# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Turns against renderings written in Python, for templates built as those of known families."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Bytes, Chat, Template
from dovetail_data.encode._turns import Turns

# As Qwen3's: reasoning is dropped before the last question, and written for every answer after it.
QWEN = Template(
    "{%- if messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- set ns = namespace(last=-1) %}{%- for message in messages %}"
    "{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- set content = message.content %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' %}{%- set thought = '' %}"
    "{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last %}"
    "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought + '\\n</think>\\n\\n' }}"
    "{{- content.lstrip('\\n') }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}"
    "{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def qwen(messages):
    """[text, whether it is learnt] of each piece."""
    last = max(i for i, m in enumerate(messages) if m["role"] == "user")
    for i, message in enumerate(messages):
        content = message["content"]
        if message["role"] != "assistant":
            yield f"<|im_start|>{message['role']}\n{content}<|im_end|>\n", False
            continue
        yield "<|im_start|>assistant\n", False
        before, closes, after = content.rpartition("</think>")
        thought = before.split("</think>")[0].split("<think>")[-1].strip("\n")
        said = after.lstrip("\n") if closes else content
        if i > last:
            yield f"<think>\n{thought}\n</think>\n\n{said.lstrip(chr(10))}<|im_end|>\n", True
        else:
            yield f"{said}<|im_end|>\n", True


# As Phi-3's: another token ends the text where no answer is to follow.
PHI = Template(
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<|system|>\n' + message['content'] + '<|end|>\n' }}{% elif message['role'] == 'user' %}"
    "{{ '<|user|>\n' + message['content'] + '<|end|>\n' }}{% elif message['role'] == 'assistant' %}"
    "{{ '<|assistant|>\n' + message['content'] + '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    eos="<|endoftext|>",
)


def phi(messages):
    for message in messages:
        yield f"<|{message['role']}|>\n", False
        yield f"{message['content']}<|end|>\n", message["role"] == "assistant"
    yield "<|endoftext|>", messages[-1]["role"] == "assistant"


# As Mistral's: the system message stands before the last question, wherever that is.
MISTRAL = Template(
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}"
    "{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}"
    "{%- for message in rest %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('roles must alternate') }}{%- endif %}{%- endfor %}"
    "{%- set asked = rest | selectattr('role', 'equalto', 'user') | list %}"
    "{{- bos_token }}{%- for message in rest %}{%- if message['role'] == 'user' %}"
    "{%- if system is defined and message == asked[-1] %}"
    "{{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + message['content'] | trim + eos_token }}{%- endif %}{%- endfor %}",
    bos="<s>",
    eos="</s>",
)


def mistral(messages):
    system = messages[0]["content"] + "\n\n" if messages[0]["role"] == "system" else ""
    rest = messages[1:] if system else messages
    # As in the template: every message equal to the last question.
    last = [message for message in rest if message["role"] == "user"][-1]
    yield "<s>", False
    for message in rest:
        if message["role"] == "user":
            begins = system if message == last else ""
            yield f"[INST] {begins}{message['content']}[/INST]", False
        else:
            yield f" {message['content'].strip()}</s>", True


FAMILIES = [(QWEN, qwen), (PHI, phi), (MISTRAL, mistral)]
WORDS = st.sampled_from(
    ["a", "<think>\nb\n</think>\n\n", "\n", " ", "<think>", "日", "X", "assistant", "<|"]
)
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(lambda words: "".join(words) + "z")


@st.composite
def conversations(draw):
    system = draw(st.booleans())
    count = draw(st.integers(2, 5))
    roles = ["system"] * system + [("user", "assistant")[i % 2] for i in range(count)]
    return [{"role": role, "content": draw(TEXTS)} for role in roles]


@pytest.mark.thorough
@pytest.mark.parametrize("template, pieces", FAMILIES, ids=["qwen", "phi", "mistral"])
@given(conversations())
@settings(max_examples=25, deadline=None)
def test_any_conversation_of_the_family_is_masked_by_its_characters(template, pieces, messages):
    expected = list(pieces(messages))
    text = template.render(messages).text
    assert text == "".join(piece for piece, _ in expected)
    assert template.render_turns(messages).text == text
    (document,) = Chat(Bytes(), template=template)([{"messages": messages}])
    assert bytes(document.arrays["tokens"].astype("u1")).decode() == text
    mask = [int(learnt) for piece, learnt in expected for _ in piece.encode()]
    assert document.arrays["mask"].tolist() == mask


# Where the renderings of the first messages are prefixes of the whole, both ways must agree.
PLAIN = {
    "chatml": Template(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "prompted in the loop": Template(
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}"
        "{% if loop.last and add_generation_prompt %}{{ 'assistant: ' }}{% endif %}{% endfor %}"
    ),
    "left early": Template(
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% continue %}{% endif %}"
        "{{ '[' + m.role + ']' }}{% for c in m.content %}{{ c }}{% endfor %}"
        "{% if m.role == 'user' %}{{ ';' }}{% continue %}{% endif %}{{ '.' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
    ),
    "without a prompt": Template(
        "{% for m in messages %}{{ ('[INST]' if m.role == 'user' else '') + m.content + '$' }}"
        "{% endfor %}"
    ),
}


@pytest.mark.parametrize("name", PLAIN)
@given(conversations())
@settings(max_examples=12, deadline=None)
def test_turns_are_those_of_the_prefixes_where_there_are_any(name, messages):
    template = PLAIN[name]
    whole = template.render(messages).text
    expected = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = template.render(messages[:i], add_generation_prompt=True).text
            said = template.render(messages[: i + 1]).text
            assert said.startswith(prompt)
            assert whole.startswith(said)
            expected.append((len(prompt), len(said)))
    assert Turns(template).spoken(messages) == expected


CHAT = [
    {"role": role, "content": text}
    for role, text in zip(["user", "assistant"] * 2, "abcd", strict=True)
]
UNKNOWN = {
    "by index": "{% for i in range(messages | length) %}{{ messages[i].content }}{% endfor %}",
    "closed in the next round": "{% for m in messages %}{% if not loop.first %}{{ '$' }}{% endif %}"
    "{{ m.role + m.content }}{% endfor %}{{ '$' }}"
    "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}",
    "written twice": "{% for m in messages %}{{ m.role + m.content }}{% endfor %}" * 2,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_turns_that_cannot_be_told_apart_are_none(name):
    assert Turns(Template(UNKNOWN[name])).spoken(CHAT) is None


def test_a_turn_with_another_heading_is_none():
    template = Template(
        "{% for m in messages %}{{ ('<s>' if loop.first else '') + m.role + ':' + m.content }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    assert Turns(template).spoken(CHAT) == [(19, 20), (36, 37)]
    assert Turns(template).spoken(CHAT[1:]) is None  # its first turn has <s> before the heading


def test_a_message_without_output_is_none():
    template = Template(
        "{% for m in messages %}{% if m.content != 'd' %}{{ m.role[0] + m.content }}{% endif %}"
        "{% endfor %}"
    )
    assert Turns(template).spoken(CHAT[:3]) == [(2, 4)]
    assert Turns(template).spoken(CHAT) is None
