# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import datetime
import pickle
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Bytes, Chat, Preference, Pretrained, Prompt, Template

USER = {"role": "user", "content": "Hi"}
MODEL = {"role": "assistant", "content": "Ho"}
BLOCKS = (
    "{% for m in messages %}{{ '[' + m.role + ']' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '.' }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def blocks_of(source, messages, **options):
    rendered = Template(source).render(messages, **options)
    return rendered.text, [rendered.text[start:stop] for start, stop in rendered.spans]


def test_blocks_are_found_in_loops_and_conditions():
    rendered = Template(BLOCKS).render([USER, MODEL, USER, MODEL], add_generation_prompt=True)
    assert rendered.text == "[user]Hi[assistant]Ho.[user]Hi[assistant]Ho.[assistant]"
    assert rendered.spans == ((19, 22), (41, 44))


@pytest.mark.parametrize(
    "source",
    [
        "{% macro say(x) %}<{% generation %}{{ x }}{% endgeneration %}>{% endmacro %}"
        "ab{{ say('Ho') }}cd",
        "{% set x %}<{% generation %}Ho{% endgeneration %}>{% endset %}ab{{ x }}cd",
        "ab{% filter trim %}<{% generation %}Ho{% endgeneration %}>{% endfilter %}cd",
    ],
)
def test_blocks_are_found_in_what_is_written_later(source):
    assert blocks_of(source, [USER]) == ("ab<Ho>cd", ["Ho"])


def test_a_block_that_writes_nothing_is_a_span_of_nothing():
    rendered = Template("a{% generation %}{% endgeneration %}b").render([USER])
    assert (rendered.text, rendered.spans) == ("ab", ((1, 1),))


def test_a_template_without_blocks_has_no_spans():
    template = Template("{{ messages[0].content }}")
    assert not template.generation
    assert template.render([USER]).spans == ()
    assert Template(BLOCKS).generation


@pytest.mark.thorough
@given(
    texts=st.lists(st.text(st.sampled_from("ab\n\ufdd0\ufdd1\ufdd2é{%}"), max_size=5), min_size=1)
)
@settings(max_examples=60, deadline=None)
def test_any_content_leaves_the_spans_right(texts):
    messages = [
        {"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)
    ]
    text, said = blocks_of(BLOCKS, messages)
    ended = [f"{content}." if i % 2 else content for i, content in enumerate(texts)]
    assert said == ended[1::2]
    assert text == "".join(
        f"[{m['role']}]{content}" for m, content in zip(messages, ended, strict=True)
    )


def test_a_text_without_room_for_marks_is_an_error():
    held = "".join(chr(0xFDD0 + i) for i in range(31))
    with pytest.raises(ValueError, match=r"leave two .* free: got all in one .*\. Delete them"):
        Template(BLOCKS).render([{"role": "user", "content": held}])


@pytest.mark.parametrize(
    "source",
    [
        "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}",
        "{% filter trim %}{% generation %} a {% endgeneration %}{% endfilter %}",
        "{% set x %}{% generation %} a {% endgeneration %}{% endset %}{{ x | trim }}",
        "{% set x %}{% generation %}ab{% endgeneration %}{% endset %}{{ x | reverse }}",
    ],
)
def test_a_block_that_cannot_be_found_is_an_error(source):
    with pytest.raises(
        ValueError, match=r"must stand unchanged in the text: got blocks .*\. Put the bl"
    ):
        Template(source).render([USER])


def test_what_is_none_is_absent_and_the_message_is_left_alone():
    source = "{{ messages[0].content is defined }}{{ messages[0].name is defined }}"
    message = {"role": "assistant", "content": None, "name": "x"}
    assert Template(source).render([message]).text == "FalseTrue"
    assert message == {"role": "assistant", "content": None, "name": "x"}


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_has_the_names_that_templates_read(name):
    source = "{{ messages[0].reasoning_content }}/{{ messages[0].thinking }}"
    assert Template(source).render([{**MODEL, name: "hm"}]).text == "hm/hm"


def test_tools_and_variables_reach_the_template():
    source = "{{ tools[0].name }} {{ level + 1 }} {{ documents is none }} {{ tools is none }}"
    template = Template(source, variables={"level": 2})
    assert template.render([USER], tools=[{"name": "f"}]).text == "f 3 True False"


def test_special_tokens_are_those_that_are_told():
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    assert Template(source, bos="<s>", eos="</s>").render([USER]).text == "<s>Hi</s>"
    assert Template(source, bos="", eos="</s>").render([USER]).text == "Hi</s>"
    assert Template("{{ bos_token is defined }}", bos="").render([USER]).text == "False"


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_special_token_that_is_not_told_is_an_error(name):
    given_one = {"bos": "<s>", "eos": "</s>", name: None}
    message = rf"writes {name}_token needs its text: got {name}=None. Pass {name}= that text, or"
    with pytest.raises(ValueError, match=message):
        Template("{{ bos_token }}{{ eos_token }}", **given_one)


def test_the_date_is_told_and_not_asked():
    source = "{{ strftime_now('%d %b %Y') }}"
    template = Template(source, now=datetime.datetime(2024, 7, 26))
    assert template.render([USER]).text == "26 Jul 2024"
    with pytest.raises(
        ValueError, match=r"must be given one: got now=None\. Pass now= the day, such as"
    ):
        Template(source).render([USER])


LLAMA3 = (
    "{% if not date_string is defined %}{% if strftime_now is defined %}"
    '{% set date_string = strftime_now("%d %b %Y") %}{% endif %}{% endif %}'
    "Today Date: {{ date_string }}\n"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)


@pytest.mark.parametrize("source", [LLAMA3, LLAMA3.replace("m.content }}", "m.content | trim }}")])
@pytest.mark.parametrize("own", [None, datetime.datetime(2024, 7, 26)])
def test_the_time_of_a_rendering_is_that_of_its_caller(source, own):
    template = Template(source, now=own)
    fingerprint = template.fingerprint
    now = datetime.datetime(2031, 2, 3, tzinfo=datetime.UTC)
    head = "Today Date: 03 Feb 2031\n"
    assert template.render([USER, MODEL], now=now).text.startswith(head)
    turns = template.render_turns([USER, MODEL], now=now)
    assert turns.text == template.render([USER, MODEL], now=now).text
    assert [turns.text[slice(*span)] for span in turns.spans] == [
        f"assistant: {MODEL['content']}\n"
    ]
    assert template.fingerprint == fingerprint  # the time of a call leaves the template alone
    if own is None:
        with pytest.raises(ValueError, match="Pass now= the day"):
            template.render([USER])
    else:
        assert template.render([USER]).text.startswith("Today Date: 26 Jul 2024\n")


@pytest.mark.parametrize("encoder", [Chat, Preference, Prompt])
def test_encoders_have_the_time_of_their_template_in_their_fingerprint(encoder):
    days = [datetime.datetime(2024, 7, day) for day in (26, 27)]
    templates = [Template(LLAMA3), *(Template(LLAMA3, now=day) for day in days)]
    prints = [encoder(Bytes(), template=template).fingerprint for template in templates]
    assert len(set(prints)) == 3
    assert encoder(Bytes(), template=Template(LLAMA3, now=days[0])).fingerprint == prints[1]


def test_what_a_template_refuses_is_told():
    source = "{{ raise_exception('roles must alternate') }}"
    message = r"must take the messages: got TemplateError: roles must alternate. Mend the record"
    with pytest.raises(ValueError, match=message):
        Template(source).render([USER])


@pytest.mark.parametrize("source", ["{{ 'a' + messages[0].absent }}", "{{ 'a' + messages }}"])
def test_what_a_template_fails_at_is_told(source):
    with pytest.raises(ValueError, match=r"must take the messages: got \w+Error: .*\. Mend the re"):
        Template(source).render([USER])


@pytest.mark.parametrize(
    "source, line",
    [("a\n{% if x %}", 2), ("a\nb\n{{ x | nothing }}", 3), ("{% generation %}", 1)],
)
def test_bad_syntax_is_an_error_that_names_the_line(source, line):
    message = rf"must be Jinja as chat templates use it: got line={line}: .*\. Mend that line"
    with pytest.raises(ValueError, match=message):
        Template(source)


def test_a_content_is_written_as_the_template_can():
    text = Template("{{ 'x' + messages[0].content }}")
    assert (text.takes_text, text.takes_parts) == (True, False)
    printed = Template("{{ messages[0].content }}")
    assert (printed.takes_text, printed.takes_parts) == (True, False)
    as_json = Template("{{ messages[0].content | tojson }}")
    assert (as_json.takes_text, as_json.takes_parts) == (True, False)
    neither = Template("{{ raise_exception('two messages, please') }}")
    assert (neither.takes_text, neither.takes_parts) == (False, False)
    parts = Template("{% for part in messages[0].content %}{{ part.text }}{% endfor %}")
    assert (parts.takes_text, parts.takes_parts) == (False, True)


def test_a_copy_in_another_process_renders_alike():
    now = datetime.datetime(2024, 7, 26)
    source = BLOCKS + "{{ strftime_now('%Y') }}"
    template = Template(source, bos="<s>", variables={"a": [1]}, now=now)
    expected = template.render([USER, MODEL])
    copy = pickle.loads(pickle.dumps(template))
    assert copy.fingerprint == template.fingerprint
    assert copy.render([USER, MODEL]) == expected
    assert expected.text.endswith("2024")


def test_fingerprints_tell_what_changes_the_text():
    day = datetime.datetime(2024, 7, 26)
    source = "{{ bos_token }}{{ eos_token }}"
    tokens = {"bos": "<s>", "eos": "</s>"}
    variants = [
        Template(source, **tokens),
        Template(source + " ", **tokens),
        Template(source, bos="<b>", eos="</s>"),
        Template(source, bos="<s>", eos="<b>"),
        Template(source, **tokens, variables={"a": 1}),
        Template(source, **tokens, now=day),
        Template(source, **tokens, now=day + datetime.timedelta(days=1)),
    ]
    assert len({template.fingerprint for template in variants}) == len(variants)
    assert Template(source, **tokens).fingerprint == variants[0].fingerprint


def test_a_special_token_may_be_a_variable():
    template = Template("{{ bos_token }}", variables={"bos_token": "<s>"})
    assert template.render([USER]).text == "<s>"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_variables_do_not_name_what_is_set_each_time(name):
    message = rf"variables must not have a name .*: got '{name}' in variables\. Leave it out"
    with pytest.raises(ValueError, match=message):
        Template("a", variables={name: []})


def test_variables_are_json():
    message = (
        r"variables .* must be JSON values: got variables=\{'a': \{1\}\}: .*\. Pass strings, nu"
    )
    with pytest.raises(TypeError, match=message):
        Template("a", variables={"a": {1}})


def test_a_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"needs .*jinja2.*pip install 'dovetail-data\[chat\]'"):
        Template("a")


LOOP = (
    "{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{% for c in m.content %}{{ c }}{% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def test_the_turns_of_the_assistant_are_spans_of_the_same_text():
    template = Template(LOOP)
    system = {"role": "system", "content": "x"}
    messages = [system, USER, MODEL, system, MODEL]
    rendered = template.render_turns(messages, add_generation_prompt=True)
    assert rendered.text == template.render(messages, add_generation_prompt=True).text
    turns = [rendered.text[start:stop] for start, stop in rendered.spans]
    assert turns == ["assistant:Ho;"] * 2
    assert template.render(messages).spans == ()
    assert pickle.loads(pickle.dumps(template)).render_turns(messages).spans == rendered.spans


def test_turns_that_a_filter_changes_are_an_error():
    source = "{% filter length | string %}" + LOOP + "{% endfilter %}"
    message = r"must stand unchanged in the text: got it changed by a filter\. Add \{% generation"
    with pytest.raises(ValueError, match=message):
        Template(source).render_turns([USER, MODEL])


class TestChatML:
    CHAT = (USER, MODEL)

    def test_by_its_name_has_the_text_of_its_authors(self):
        """https://github.com/openai/openai-python/blob/release-v0.28.0/chatml.md"""
        want = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in self.CHAT)
        template = Template("chatml")
        assert template.render(self.CHAT).text == want
        asked = template.render(self.CHAT, add_generation_prompt=True).text
        assert asked == want + "<|im_start|>assistant\n"

    def test_ends_a_turn_with_eos_where_the_tokenizer_lacks_its_token(self, tmp_path):
        from dovetail_data import train_bpe

        tokenizer = train_bpe(["user assistant"] * 9, tmp_path, vocab_size=270)
        template = Template.chatml(tokenizer)
        (encoded,) = tokenizer.encode_with_specials([template.render(self.CHAT).text])
        assert encoded.ids.tolist().count(tokenizer.eos_id) == len(self.CHAT)
        assert encoded.ids[0] == tokenizer.bos_id
        (document,) = Chat(tokenizer, template=template)([{"messages": list(self.CHAT)}])
        trained = document.arrays["tokens"][document.arrays["mask"] > 0]
        assert tokenizer.eos_id in trained
        assert tokenizer.decode(trained) == MODEL["content"] + "\n"

    def test_has_its_own_tokens_where_the_tokenizer_has_them(self, tmp_path):
        import tokenizers

        whole = tokenizers.Tokenizer(tokenizers.models.BPE({"<|endoftext|>": 0}, []))
        whole.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        whole.save(str(tmp_path / "tokenizer.json"))
        assert Template.chatml(Pretrained(tmp_path)).source == Template("chatml").source

    def test_needs_a_special_token_at_the_end_of_a_turn(self, tmp_path):
        import tokenizers

        whole = tokenizers.Tokenizer(tokenizers.models.BPE({"</s>": 0}, []))
        whole.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(ValueError, match=r"special tokens: got '</s>' for id 0.*Jinja templ"):
            Template.chatml(Pretrained(tmp_path))


def test_a_null_that_the_template_tests_is_there_after_all():
    source = (
        "{% for m in messages %}{% if m.content is none %}call {{ m.tool_calls[0].name }}"
        "{% else %}{{ m.content + '!' }}{% endif %}{% endfor %}"
    )
    called = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "id": None}]}
    assert Template(source).render([USER, called]).text == "Hi!call f"
    del called["content"]
    with pytest.raises(ValueError, match="has no attribute 'content'"):
        Template(source).render([USER, called])
