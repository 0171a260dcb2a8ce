# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Forms of calls and reasoning by chat templates that write as those of the families do."""

import json
import shutil

import pytest

from dovetail_data import Pretrained, Template
from dovetail_stack import cli
from dovetail_stack.recipes import dialects
from dovetail_stack.recipes.record_options import Dialogue
from dovetail_stack.recipes.serving import chat, dialect_of

_ROLE = "{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
_CALLS = "{% for c in m.tool_calls or [] %}"
HERMES = (
    f"{_TOOLS}{{% for m in messages %}}{_ROLE}{_CALLS}"
    "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}"
    "{% endif %}"
    """{{ '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}"""
    "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}"
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
# Arguments of a parameter each, in XML, as Qwen3-Coder.
XML = (
    f"{_TOOLS}{{% for m in messages %}}{_ROLE}{_CALLS}"
    "{{ '<tool_call>\n<function=' + c.function.name + '>\n' }}"
    "{% for k, v in c.function.arguments.items() %}{{ '<parameter=' + k + '>' + v }}{% endfor %}"
    "{{ '</function>\n</tool_call>' }}{% endfor %}{% endfor %}"
)
LLAMA = (
    "{% for m in messages %}{% if m.role == 'user' %}"
    f"{_TOOLS}{{{{ '<|head|>user<|end|>\n\n' + m.content + '<|eot|>' }}}}"
    "{% elif 'tool_calls' in m %}{% if m.tool_calls | length > 1 %}"
    "{{ raise_exception('single calls') }}{% endif %}{% set c = m.tool_calls[0].function %}"
    """{{ '<|head|>assistant<|end|>\n\n{"name": "' + c.name + '", "parameters": ' }}"""
    "{{ c.arguments | tojson + '}<|eot|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|end|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if tools %}"
    "{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST]' + m.content + '[/INST]' }}{% else %}{{ '[TOOL_CALLS] [' }}"
    f"{_CALLS}{{% if c.id | length != 9 %}}{{{{ raise_exception('ids of 9') }}}}{{% endif %}}"
    """{{ (c.function | tojson)[:-1] + ', "id": "' + c.id + '"}' }}{% endfor %}{{ ']</s>' }}"""
    "{% endif %}{% endfor %}"
)
MISTRAL_NAMES = (
    "{% for m in messages %}{% if m.role == 'user' %}"
    f"{_TOOLS}{{{{ '[INST]' + m.content + '[/INST]' }}}}{{% else %}}{_CALLS}"
    "{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}"
    "{% endfor %}{{ '</s>' }}{% endif %}{% endfor %}{# [THINK] [/THINK] #}"
)
_DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m['content'] }}{% else %}"
    "{{ '<｜Assistant｜>' }}{% if m['content'] is not none %}{{ m['content'] + '' }}{% endif %}"
    f"{{{{ '<｜tool▁calls▁begin｜>' }}}}{_CALLS}WRITTEN"
    "{{ '<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}{# </think> #}"
)
_V3 = (
    "{{ '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name + '\n```json\n' }}"
    "{{ '' + c.function.arguments + '\n```' }}"
)
_V31 = "{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments }}"
R1 = _DEEPSEEK.replace("WRITTEN", _V3)  # it does not write the tools on offer
GPT_OSS = (
    f"{_TOOLS}{{% for m in messages %}}{{% if m.tool_calls %}}{_CALLS}"
    "{{ '<|start|>assistant to=functions.' + c.function.name + '<|channel|>commentary json' }}"
    "{{ '<|message|>' + c.function.arguments | tojson + '<|call|>' }}{% endfor %}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
    "{# <|channel|>analysis #}{{ reasoning_effort }}"
)
PLAIN = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "tools", "objects", "reasoning"),
    [
        (HERMES, "hermes", True, "think"),
        (LLAMA, "llama3", True, None),
        (MISTRAL, "mistral", True, None),
        (MISTRAL_NAMES, "mistral", True, "mistral"),
        (_TOOLS + _DEEPSEEK.replace("WRITTEN", _V3), "deepseek", False, "think"),
        (_TOOLS + _DEEPSEEK.replace("WRITTEN", _V31), "deepseek", False, "think"),
        (GPT_OSS, "gpt-oss", True, "gpt-oss"),
        (R1, None, False, "think"),
        (XML, None, True, None),
        (PLAIN, None, True, None),
    ],
    ids=["hermes", "llama", "mistral", "names", "v3", "v3.1", "gpt-oss", "r1", "xml", "plain"],
)
def test_a_template_is_read_by_the_format_that_it_writes(source, tools, objects, reasoning):
    template = Template(source)
    assert dialects.calls_of(template) == (tools, objects)
    assert dialects.reasoning_of(template) == reasoning


@pytest.fixture
def caller(talker, tmp_path):
    """A model with a template that writes tools and reasoning."""
    shutil.copytree(talker, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(HERMES)
    return tmp_path / "model"


def test_options_win_over_the_template(caller):
    own = dialect_of(caller, Dialogue())
    assert (own.tools, own.reasoning) == ("hermes", "think")
    made = dialect_of(caller, Dialogue(), tools="llama3", reasoning="none")
    assert (made.tools, made.reasoning) == ("llama3", None)
    specials = json.loads((caller / "tokenizer.json").read_text())["added_tokens"]
    assert made.specials == tuple(t["content"] for t in specials if t["special"]) != ()
    with pytest.raises(ValueError, match="got tools='xml'"):
        dialect_of(caller, Dialogue(), tools="xml")


def test_a_directory_without_a_template_has_no_formats(source):
    made = dialect_of(source, Dialogue())
    assert (made.tools, made.reasoning) == (None, None)


@pytest.mark.capability("tools and reasoning by a model's chat template")
def test_tools_calls_and_variables_reach_the_template(caller):
    tokenizer = Pretrained(caller)
    ids = chat(caller, tokenizer, Dialogue())
    tools = [{"type": "function", "function": {"name": "f"}}]
    function = {"name": "f", "arguments": '{"a":1}'}
    said = [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "x", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "x", "content": "6"},
    ]
    shown = tokenizer.decode(ids(said, tools, {"enable_thinking": False}))
    assert shown == (
        '[{"type": "function", "function": {"name": "f"}}]'
        "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\n\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n6<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert tokenizer.decode(ids(said, (), {})) == shown[: -len("<think>\n\n</think>\n\n")][49:]
    with pytest.raises(ValueError, match=r"^chat_template_kwargs must be read.*'thinks'"):
        ids(said, (), {"thinks": True})
    with pytest.raises(ValueError, match=r"^reasoning_effort must be read"):
        ids(said, (), {"reasoning_effort": "low"})


def test_reasoning_that_a_template_does_not_read_is_left_out(talker):
    tokenizer = Pretrained(talker)
    ids = chat(talker, tokenizer, Dialogue())
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "user", "content": "c"},
    ]
    assert tokenizer.decode(ids(said, (), {})) == "[user]a[assistant]b[user]c[assistant]"


def test_an_unknown_format_is_answered_in_the_words_of_the_line(capsys, caller):
    assert cli.main(["serve", str(caller), "--tools", "xml"]) == 2
    assert "--tools must be one of hermes, " in capsys.readouterr().err
