# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import datetime
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Bytes, Corrupt, Encoder, Prompt, Template

LINES = Template(
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role[0] + ':' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}",
    bos="<|bos|>",
)
HI = [{"role": "user", "content": "Hi"}]


def encoded(record, **options):
    (result,) = Prompt(Bytes(), **options)([record])
    return result


def tokens_of(document):
    return document.arrays["tokens"].tolist()


def test_a_string_is_bos_and_its_ids():
    document = encoded({"prompt": "é<|eos|>"})
    assert tokens_of(document) == [256, *"é<|eos|>".encode()]
    assert document.arrays["tokens"].dtype == np.int32
    assert document.arrays["extra"].tobytes() == b"{}"


def test_messages_end_with_the_generation_prompt():
    document = encoded({"prompt": HI}, template=LINES)
    assert tokens_of(document) == [256, *b"u:Hi\na:"]


def test_other_fields_are_kept_as_canonical_json():
    record = {"z": [1, {"b": None, "a": "é"}], "prompt": "x", "answer": 0.5}
    extra = encoded(record).arrays["extra"]
    assert extra.dtype == np.uint8
    assert extra.tobytes().decode() == '{"answer":0.5,"z":[1,{"a":"é","b":null}]}'


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # What UTF-8 can hold: no lone surrogates.
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\u00e9"), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.thorough
@given(st.dictionaries(st.text("xyz", min_size=1), JSON, max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_other_fields_come_back(fields):
    extra = encoded({**fields, "prompt": "a"}).arrays["extra"]
    assert json.loads(extra.tobytes()) == fields
    backwards = dict(reversed(fields.items()))
    assert encoded({"prompt": "a", **backwards}).arrays["extra"].tobytes() == extra.tobytes()


def test_the_prompt_may_have_another_name():
    document = encoded({"question": "a", "prompt": "b"}, field="question")
    assert tokens_of(document) == [256, 97]
    assert json.loads(document.arrays["extra"].tobytes()) == {"prompt": "b"}


def test_tools_are_rendered_and_kept():
    record = {"prompt": HI, "tools": [1], "can": "[2]"}
    document = encoded(record, template=LINES)
    assert tokens_of(document) == [256, *b"[1]u:Hi\na:"]
    assert json.loads(document.arrays["extra"].tobytes()) == {"tools": [1], "can": "[2]"}
    document = encoded(record, template=LINES, tools_field="can")
    assert tokens_of(document) == [256, *b"[2]u:Hi\na:"]


def test_a_prompt_without_an_id_is_dropped():
    tokenizer = Bytes()
    tokenizer.bos_id = None
    assert Prompt(tokenizer)([{"prompt": ""}]) == [None]
    assert tokens_of(Prompt(tokenizer)([{"prompt": "a"}])[0]) == [97]
    assert tokens_of(encoded({"prompt": ""})) == [256]


@pytest.mark.parametrize(
    "record, template, message",
    [
        (
            {"text": "a"},
            None,
            "must be a string: got prompt of type NoneType in a record with ['te",
        ),
        ({"prompt": HI}, None, "got prompt of type list in a record with ['prompt']. Pass field= "),
        ({"prompt": "a"}, LINES, "a chat must be a list of messages: got prompt='a'. Write"),
        (
            {"prompt": [*HI, {"role": "assistant", "content": "Ho"}]},
            LINES,
            "must not end with what the assistant said: got prompt[-1] with role='assistant'. Lea",
        ),
        ({"prompt": HI, "tools": 3}, LINES, "tools must be a list of JSON schemas"),
        ({"prompt": [{"role": "user", "content": "<|bos|>"}]}, LINES, "got '<|bos|>' in prompt[0]"),
        ({"prompt": "a", "at": datetime.date(2024, 7, 26)}, None, "must be JSON: got ['at']: Obje"),
        (
            {"prompt": "a", "x": math.nan},
            None,
            "the fields beside the prompt must be JSON: got ['x",
        ),
        ({"prompt": "a", "x": "\ud800"}, None, "must be JSON: got ['x']: 'utf-8' codec"),
        ({"prompt": "a\ud800"}, None, "text must be Unicode without lone surrogates"),
    ],
)
def test_what_is_no_prompt_is_corrupt(record, template, message):
    result = encoded(record, template=template)
    assert isinstance(result, Corrupt)
    assert message in result.error


def test_results_stand_in_the_places_of_their_records():
    records = [{"prompt": "a"}, {}, {"prompt": "b"}]
    first, second, third = Prompt(Bytes())(records)
    assert (tokens_of(first), tokens_of(third)) == ([256, 97], [256, 98])
    assert isinstance(second, Corrupt)


def test_messages_need_a_tokenizer_that_reads_templates(counting):
    with pytest.raises(TypeError, match=r"must have encode_with_specials .*: got Counting. Use"):
        Prompt(counting(), template=LINES)
    Prompt(counting())


def test_it_is_an_encoder_that_travels():
    encoder = Prompt(Bytes(), template=LINES)
    assert isinstance(encoder, Encoder)
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy.fingerprint == encoder.fingerprint
    assert tokens_of(copy([{"prompt": HI}])[0]) == [256, *b"u:Hi\na:"]


def test_the_layout_holds_ids_and_bytes():
    layout = Prompt(Bytes()).layout
    assert {name: (field.dtype, field.vocab_size) for name, field in layout.items()} == {
        "tokens": ("<u2", 258),
        "extra": ("|u1", None),
    }


def test_fingerprints_tell_what_changes_the_arrays(bpe):
    variants = [
        Prompt(Bytes()),
        Prompt(bpe),
        Prompt(Bytes(), template=LINES),
        Prompt(Bytes(), field="question"),
        Prompt(Bytes(), tools_field=None),
    ]
    assert len({encoder.fingerprint for encoder in variants}) == len(variants)
    assert Prompt(Bytes()).fingerprint == variants[0].fingerprint
    assert variants[2].manifest == {
        "encoder": "prompt",
        "tokenizer": "bytes/1",
        "vocab_size": 258,
        "template": LINES.fingerprint,
        "field": "prompt",
        "tools_field": "tools",
    }
