# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from dialogues import CHATML, encoded, shown, turns

from dovetail_data import Bytes, Chat, Corrupt, Template


class TestKeysThatNobodyReads:
    @pytest.mark.parametrize(
        ("key", "value"),
        [("train", False), ("prefix", True), ("score", 0), ("reasoning_content", "hm"),
         ("tool_calls", [{"type": "function", "function": {"name": "f", "arguments": {}}}])],
    )  # fmt: skip
    def test_are_refused_by_name(self, key, value):
        chat = turns("Hi", "Ho")
        chat[1][key] = value
        result = encoded(CHATML, chat)
        assert isinstance(result, Corrupt)
        assert f"must be read by the template: got {key!r} in message 1 of 2" in result.error
        assert f"pass ignore_keys=[{key!r}]" in result.error
        assert shown(encoded(CHATML, chat, ignore_keys=[key])) == shown(
            encoded(CHATML, turns("Hi", "Ho"))
        )

    def test_of_a_part_are_refused_too(self):
        parts = [{"type": "text", "text": "Ho", "train": False}]
        result = encoded(CHATML, [*turns("Hi"), {"role": "assistant", "content": parts}])
        assert "got 'train' in a part of messages[1]" in result.error

    @pytest.mark.parametrize(
        "source",
        [
            "{% for m in messages %}{{ m.content }}{{ m.get('mood') }}{% endfor %}",
            "{% for m in messages %}{{ m.content }}{{ m['mood'] }}{% endfor %}",
            "{% for m in messages %}{{ m | tojson }}{% endfor %}",
        ],
    )
    def test_are_those_that_the_template_does_not_name(self, source):
        chat = [{"role": "assistant", "content": "Ho", "mood": "glad"}]
        assert "glad" in shown(encoded(Template(source), chat, train_on="all"))

    def test_that_say_nothing_are_left_out(self):
        chat = turns("Hi", "Ho")
        chat[1] |= {"name": "x", "id": "7", "refusal": None, "annotations": [], "weight": 1}
        assert shown(encoded(CHATML, chat)) == shown(encoded(CHATML, turns("Hi", "Ho")))

    def test_may_not_be_ignored_if_they_are_trained(self):
        with pytest.raises(ValueError, match="no training reads: got 'content'"):
            Chat(Bytes(), template=CHATML, ignore_keys=["content"])
        with pytest.raises(TypeError, match=r"a sequence of keys: .*'id'. Pass \['id'\]"):
            Chat(Bytes(), template=CHATML, ignore_keys="id")
        plain = Chat(Bytes(), template=CHATML)
        assert plain.fingerprint != Chat(Bytes(), template=CHATML, ignore_keys=["a"]).fingerprint


def test_null_is_absent_in_calls_and_tools():
    """Arrow gives each dictionary the keys of all; the expected text is that of the first row."""
    template = Template(
        "{{ tools | tojson }}{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls }}"
        "{{ m.content }}{% endfor %}"
    )
    call = {"name": "f", "arguments": {"city": "Rome", "deep": {"a": [1, None]}}}
    chat = [{"role": "assistant", "content": "Ho", "tool_calls": [call]}]
    nulls = {"name": "f", "arguments": {"city": "Rome", "unit": None, "deep": {"a": [1, None],
             "b": None}}}  # fmt: skip
    with_nulls = [{"role": "assistant", "content": "Ho", "name": None, "tool_calls": [nulls]}]
    encode = Chat(Bytes(), template=template, train_on="all")
    (wanted,) = encode([{"messages": chat, "tools": [{"p": {"x": 1}}]}])
    (own,) = encode([{"messages": with_nulls, "tools": [{"p": {"x": 1, "y": None}, "z": None}]}])
    assert shown(own) == shown(wanted)
    assert '"a": [1, null]' in shown(own)  # lists have no invented nulls
