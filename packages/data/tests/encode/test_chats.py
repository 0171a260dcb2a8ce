# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Bytes, Corrupt, Document, Template
from dovetail_data.encode import _chats

LINES = "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
PARTS = (
    "{% for m in messages %}{% for p in m.content %}{{ '<' + p.text + '>' }}{% endfor %}"
    "{% endfor %}"
)


@pytest.fixture
def renderer():
    return _chats.Renderer(Bytes(), Template(LINES))


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_id_counts_if_all_of_its_characters_do(data):
    characters = data.draw(st.integers(0, 12))
    pair = st.tuples(st.integers(0, characters), st.integers(0, characters)).map(sorted)
    spans = data.draw(st.lists(pair, max_size=8))
    trained = data.draw(st.lists(pair.map(tuple), max_size=4))
    learnt = {i for start, stop in trained for i in range(start, stop)}
    expected = [
        set(range(start, stop)) <= learnt if start < stop else start in learnt
        for start, stop in spans
    ]
    array = np.array(spans, np.int32).reshape(-1, 2)
    mask = _chats.cover(array, trained, characters=characters)
    assert mask.dtype == np.uint8
    assert mask.tolist() == expected


def test_spans_that_touch_are_one():
    spans = np.array([[0, 1], [1, 3], [3, 4]], np.int32)
    assert _chats.cover(spans, [(0, 2), (2, 4)], characters=4).tolist() == [1, 1, 1]
    assert _chats.cover(spans, [(0, 2), (3, 4)], characters=4).tolist() == [1, 0, 1]


def test_every_record_has_its_result_in_its_place():
    def prepare(record):
        if record["n"] < 0:
            raise _chats.MalformedError("below 0")
        if record["n"] == 0:
            return None
        finish = lambda encodings: Document(  # noqa: E731
            arrays={"n": np.array([len(encoding.ids) for encoding in encodings])}
        )
        return _chats.Prepared(texts=[record["text"]] * record["n"], finish=finish)

    calls = []

    def encode(texts):
        calls.append(list(texts))
        return Bytes().encode(texts)

    records = [{"n": n, "text": text} for n, text in [(2, "ab"), (-1, ""), (0, ""), (1, "ü😀")]]
    first, second, third, fourth = _chats.encode_each(records, prepare, encode)
    assert first.arrays["n"].tolist() == [2, 2]
    assert second == Corrupt("below 0")
    assert third is None
    assert fourth.arrays["n"].tolist() == [6]
    assert calls == [["ab", "ab", "ü😀"]]


def test_what_is_not_the_records_fault_is_raised():
    def prepare(record):
        raise ValueError("the settings")

    with pytest.raises(ValueError, match="the settings"):
        _chats.encode_each([{}], prepare, Bytes().encode)


def test_a_lone_surrogate_costs_its_record_alone():
    def prepare(record):
        finish = lambda encodings: Document(arrays={"n": encodings[0].ids})  # noqa: E731
        return _chats.Prepared(texts=[record["text"]], finish=finish)

    records = [{"text": "a\ud800"}, {"text": "b"}]
    bad, good = _chats.encode_each(records, prepare, Bytes().encode)
    assert bad == Corrupt(
        "text must be Unicode without lone surrogates: got '\\ud800' in the record. Mend or delete "
        "it."
    )
    assert good.arrays["n"].tolist() == [98]


@pytest.mark.parametrize(
    "value, message",
    [
        (None, r"a chat must be a list of messages: got chat=None\. Write \"chat\": \["),
        ("hi", r"a chat must be a list of messages: got chat='hi'\. Write"),
        ([], r"a chat must be a list of messages: got chat=\[\]\. Write"),
        ({"role": "user"}, r"a chat must be a list of messages: got chat=\{'role'"),
        (["hi"], r"must be an object with a string as role: got chat\[0\]='hi'\. Write \{\"role"),
        ([{"content": "hi"}], r"a string as role: got chat\[0\]=\{'content': 'hi'\}\. Write"),
        ([{"role": 1, "content": "hi"}], r"with a string as role: got chat\[0\]=.*\. Write"),
        ([{"role": "user"}], r"content or tool_calls: got chat\[0\] with \['role'\]\. Write"),
        ([{"role": "user", "content": None}], r"must have content or tool_calls: got chat\[0\]"),
        ([{"role": "u", "content": 7}], r"a string or a list of text parts: got 7 in chat\[0\]\."),
        (
            [{"role": "u", "content": [{"type": "image"}]}],
            r"list of text parts: got \[\{'type'.*Wr",
        ),
        ([{"role": "u", "content": [{"type": "x", "text": "a"}]}], r"list of text parts: got"),
        ([{"role": "u", "content": ["a"]}], r"a list of text parts: got \['a'\] in .*Write parts"),
        (
            [{"role": "u", "content": "a<|eos|>"}],
            r"hold .*special token: got '<\|eos\|>' in chat\[",
        ),
        ([{"role": "<|bos|>", "content": "a"}], r"special token: got '<\|bos\|>' in .*Take it out"),
        ([{"role": "u", "content": "a", "x": [{"<|eos|>": 1}]}], r"special token: got '<\|eos"),
    ],
)
def test_what_is_no_chat_is_told(renderer, value, message):
    with pytest.raises(_chats.MalformedError, match=message):
        renderer.messages(value, field="chat")


def test_the_message_that_is_wrong_is_named(renderer):
    good = {"role": "user", "content": "a"}
    with pytest.raises(_chats.MalformedError, match=r"got chat\[2\]=5"):
        renderer.messages([good, good, 5], field="chat")


def test_long_values_are_told_in_short(renderer):
    with pytest.raises(_chats.MalformedError) as caught:
        renderer.messages("a" * 1000, field="chat")
    assert len(str(caught.value)) < 200


def parts(*texts):
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


def test_text_parts_become_what_the_template_writes(renderer):
    messages = renderer.messages(parts("a", "b"), field="chat")
    assert renderer.text(messages, tools=None).text == "user:ab\n"
    of_parts = _chats.Renderer(Bytes(), Template(PARTS))
    messages = of_parts.messages(parts("a", "b"), field="chat")
    assert of_parts.text(messages, tools=None).text == "<a><b>"
    messages = of_parts.messages([{"role": "user", "content": "ab"}], field="chat")
    assert of_parts.text(messages, tools=None).text == "<ab>"


@pytest.mark.parametrize("source", [LINES, PARTS.replace("'<' + ", "").replace(" + '>'", "")])
def test_a_special_token_in_two_parts_is_one(source):
    renderer = _chats.Renderer(Bytes(), Template(source))
    with pytest.raises(_chats.MalformedError, match=r"special token: got '<\|eos\|>'"):
        renderer.messages(parts("a<|e", "os|>"), field="chat")


def test_a_call_of_a_tool_needs_no_content(renderer):
    message = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    assert renderer.messages([message], field="chat") == [message]


def test_what_the_template_refuses_is_the_records_fault():
    renderer = _chats.Renderer(Bytes(), Template("{{ raise_exception('no ' + messages[0].role) }}"))
    with pytest.raises(_chats.MalformedError, match="got TemplateError: no cat"):
        renderer.text([{"role": "cat", "content": ""}], tools=None)


@pytest.mark.parametrize("given_tools", [[{"name": "f"}], '[{"name": "f"}]'])
def test_tools_are_a_list_or_its_json(renderer, given_tools):
    record = {"tools": given_tools, "other": 1}
    assert renderer.tools(record, "tools") == [{"name": "f"}]
    assert renderer.tools(record, None) is None
    assert renderer.tools(record, "absent") is None
    assert renderer.tools({"tools": None}, "tools") is None


@pytest.mark.parametrize("given_tools", ["f(", '{"name": 1}', {"name": 1}, 3])
def test_other_tools_are_told(renderer, given_tools):
    message = r"tools must be a list of JSON schemas, or its text: got t=.*\. Write a list, or lea"
    with pytest.raises(_chats.MalformedError, match=message):
        renderer.tools({"t": given_tools}, "t")


def test_tools_hold_no_special_tokens(renderer):
    with pytest.raises(_chats.MalformedError, match=r"special token: got '<\|eos\|>' in t\."):
        renderer.tools({"t": [{"name": {"x": "<|eos|>"}}]}, "t")


def test_a_tokenizer_must_read_templates(counting):
    message = r"must have encode_with_specials and find_special .*: got Counting. Use Pretrained or"
    with pytest.raises(TypeError, match=message):
        _chats.reader(counting())


@pytest.mark.parametrize(
    "prefix, whole, told",
    [
        ("ab<think>", "abc", r"got '<think>' alone and 'c' among all, at character 2\. Do"),
        ("abcd", "abc", r"got 'd' alone and '' among all, at character 3\. Do"),
    ],
)
def test_ambiguity_shows_where(prefix, whole, told):
    error = _chats.ambiguous(prefix, whole, cure="Do.")
    with pytest.raises(ValueError, match=rf"ambiguous template: it must render .*: {told}"):
        raise error
