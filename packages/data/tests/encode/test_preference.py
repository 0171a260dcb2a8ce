# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pickle

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Bytes, Corrupt, Encoder, Preference, Pretrained, Template

LINES = Template(
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role[0] + ':' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)


def turns(*texts):
    roles = ["user", "assistant"] * len(texts)
    return [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]


def answer(text):
    return [{"role": "assistant", "content": text}]


def encoded(record, *, template=None, tokenizer=None, **options):
    encoder = Preference(tokenizer or Bytes(), template=template, **options)
    (result,) = encoder([record])
    return result


def shown(document, side):
    """The text of a side, then what of it is learnt; ^ is bos and $ eos."""
    tokens, mask = document.arrays[side], document.arrays[f"{side}_mask"]
    text = ["^" if i == 256 else "$" if i == 257 else chr(i) for i in tokens.tolist()]
    learnt = [c for c, counts in zip(text, mask, strict=True) if counts]
    return "".join(text), "".join(learnt)


def test_strings_are_one_text_between_bos_and_eos():
    document = encoded({"prompt": "Hi", "chosen": " Ho", "rejected": "?"})
    assert shown(document, "chosen") == ("^Hi Ho$", " Ho$")
    assert shown(document, "rejected") == ("^Hi?$", "?$")
    kinds = {name: array.dtype for name, array in document.arrays.items()}
    assert kinds == {
        "chosen": np.int32,
        "chosen_mask": np.uint8,
        "rejected": np.int32,
        "rejected_mask": np.uint8,
    }


def test_without_a_bos_the_prompt_begins():
    tokenizer = Bytes()
    tokenizer.bos_id = None
    document = encoded({"prompt": "Hi", "chosen": "a", "rejected": "b"}, tokenizer=tokenizer)
    assert shown(document, "chosen") == ("Hia$", "a$")


def test_text_in_strings_is_never_special():
    document = encoded({"prompt": "<|bos|>", "chosen": "<|eos|>", "rejected": ""})
    assert shown(document, "chosen") == ("^<|bos|><|eos|>$", "<|eos|>$")
    assert shown(document, "rejected") == ("^<|bos|>$", "$")


@pytest.mark.thorough
@given(*[st.text(st.characters(codec="utf-8"), max_size=8)] * 3)
@settings(max_examples=60, deadline=None)
def test_any_strings_are_masked_by_their_bytes(prompt, chosen, rejected):
    document = encoded({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    if chosen == rejected:
        assert document is None
        return
    for side, text in (("chosen", chosen), ("rejected", rejected)):
        assert document.arrays[side].tolist() == [256, *(prompt + text).encode(), 257]
        unlearnt = [0] * (1 + len(prompt.encode()))
        expected = unlearnt + [1] * (len(text.encode()) + 1)
        assert document.arrays[f"{side}_mask"].tolist() == expected


def test_an_id_of_both_prompt_and_answer_is_not_learnt(tmp_path):
    vocabulary = {"a": 0, "b": 1, "ab": 2, "<|eos|>": 3}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b")]))
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Pretrained(tmp_path)
    document = encoded({"prompt": "ba", "chosen": "ba", "rejected": "a"}, tokenizer=tokenizer)
    assert document.arrays["chosen"].tolist() == [1, 2, 0, 3]
    assert document.arrays["chosen_mask"].tolist() == [0, 0, 1, 1]
    assert document.arrays["rejected"].tolist() == [1, 0, 0, 3]
    assert document.arrays["rejected_mask"].tolist() == [0, 0, 1, 1]


MESSAGES = [
    {"prompt": turns("Hi"), "chosen": answer("Ho"), "rejected": answer("No.")},
    {"chosen": turns("Hi", "Ho"), "rejected": turns("Hi", "No.")},
    {"prompt": "Hi", "chosen": turns("Hi", "Ho"), "rejected": turns("Hi", "No.")},
    {"prompt": None, "chosen": turns("Hi", "Ho"), "rejected": turns("Hi", "No.")},
]


@pytest.mark.parametrize("record", MESSAGES, ids=["explicit", "implicit", "text", "none"])
def test_messages_are_rendered_and_the_answer_is_learnt(record):
    document = encoded(record, template=LINES)
    assert shown(document, "chosen") == ("u:Hi\na:Ho\n", "Ho\n")
    assert shown(document, "rejected") == ("u:Hi\na:No.\n", "No.\n")


def test_the_shared_messages_are_the_prompt():
    chosen, rejected = turns("A", "B", "C", "D", "E"), turns("A", "B", "C", "d")
    document = encoded({"chosen": chosen, "rejected": rejected}, template=LINES)
    assert shown(document, "chosen") == ("u:A\na:B\nu:C\na:D\nu:E\n", "D\nu:E\n")
    assert shown(document, "rejected") == ("u:A\na:B\nu:C\na:d\n", "d\n")


def test_a_prompt_as_text_is_one_of_the_shared_messages():
    record = {
        "prompt": "C",
        "chosen": turns("A", "B", "C", "D"),
        "rejected": turns("A", "B", "C", "d"),
    }
    document = encoded(record, template=LINES)
    assert shown(document, "rejected") == ("u:A\na:B\nu:C\na:d\n", "d\n")


def test_special_tokens_are_those_of_the_template():
    template = Template(
        "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}",
        bos="<|bos|>",
        eos="<|eos|>",
    )
    document = encoded(MESSAGES[0], template=template)
    assert shown(document, "chosen") == ("^Hi$Ho$", "Ho$")


def test_tools_are_rendered_for_both():
    record = {**MESSAGES[0], "tools": [1], "can": "[2]"}
    assert shown(encoded(record, template=LINES), "rejected") == ("[1]u:Hi\na:No.\n", "No.\n")
    document = encoded(record, template=LINES, tools_field="can")
    assert shown(document, "chosen") == ("[2]u:Hi\na:Ho\n", "Ho\n")


@pytest.mark.parametrize(
    "record, template",
    [
        ({"prompt": "Hi", "chosen": "a", "rejected": "a"}, None),
        ({"prompt": turns("Hi"), "chosen": answer("a"), "rejected": answer("a")}, LINES),
        ({"chosen": turns("Hi", "a"), "rejected": turns("Hi", "a")}, LINES),
    ],
)
def test_equal_answers_are_dropped(record, template):
    assert encoded(record, template=template) is None


def test_an_answer_that_writes_nothing_is_dropped():
    template = Template("{% for m in messages %}{{ m.content }}{% endfor %}")
    record = {"prompt": turns("Hi"), "chosen": answer("a"), "rejected": answer("")}
    assert encoded(record, template=template) is None
    record = {"prompt": turns(""), "chosen": answer("a"), "rejected": answer("bc")}
    assert encoded(record, template=template) is None  # "a" is the first id, and so no target


def test_a_prompt_that_is_rewritten_is_corrupt():
    template = Template(
        "{% for m in messages %}{{ m.role[0] + ':' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'a:<think>' }}{% endif %}"
    )
    refused = encoded(MESSAGES[0], template=template)
    assert isinstance(refused, Corrupt)
    assert refused.error == (
        "ambiguous template: it must render the first messages as it begins to render all: got "
        "'<think>' alone and 'Ho' among all, at character 6. Mend what it writes for "
        "add_generation_prompt, or the variables on which that depends."
    )


@pytest.mark.parametrize(
    "record, template, message",
    [
        ({}, None, "without a template must have strings as prompt, chosen and rejected: got {'pr"),
        ({"chosen": "a", "rejected": "b"}, None, "got {'prompt': 'NoneType', 'chosen': 'str', 'r"),
        ({"prompt": 1, "chosen": "a", "rejected": "b"}, None, "'int', 'chosen': 'str', 'rejected"),
        (MESSAGES[0], None, "'chosen': 'list', 'rejected': 'list'}. Write those, or pass template"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            LINES,
            "list of messages: got chosen='b'",
        ),
        ({**MESSAGES[0], "rejected": []}, LINES, "must be a list of messages: got rejected=[]."),
        ({**MESSAGES[0], "prompt": []}, LINES, "must be a list of messages: got prompt=[]."),
        (
            {"prompt": turns("Hi", "Ho"), "chosen": answer("a"), "rejected": answer("b")},
            LINES,
            "a prompt must not end with what the assistant said: got prompt[-1] with role='assist",
        ),
        (
            {"chosen": turns("a", "b"), "rejected": turns("c", "b")},
            LINES,
            "must begin with the same messages and then differ: got 0 in common, then 2 and 2. W",
        ),
        (
            {"chosen": turns("a"), "rejected": turns("a", "b")},
            LINES,
            "must begin with the same messages and then differ: got 1 in common, then 0 and 1. W",
        ),
        (
            {"chosen": turns("a", "b"), "rejected": turns("a")},
            LINES,
            "must begin with the same messages and then differ: got 1 in common, then 1 and 0. W",
        ),
        (
            {"chosen": turns("a"), "rejected": turns("a")},
            LINES,
            "must begin with the same messages and then differ: got 0 in common, then 1 and 1. W",
        ),
        (
            {"prompt": "Hello", "chosen": turns("Hi", "a"), "rejected": turns("Hi", "b")},
            LINES,
            "must be one of the first messages of chosen and rejected: got prompt='Hello'.",
        ),
        ({**MESSAGES[0], "tools": 1}, LINES, "tools must be a list of JSON schemas"),
        (
            {**MESSAGES[0], "chosen": answer("<|eos|>")},
            LINES,
            "special token: got '<|eos|>' in cho",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "\ud800"}, None, "without lone surrogates"),
    ],
)
def test_what_is_no_preference_is_corrupt(record, template, message):
    result = encoded(record, template=template)
    assert isinstance(result, Corrupt)
    assert message in result.error


def test_results_stand_in_the_places_of_their_records():
    encoder = Preference(Bytes(), template=LINES)
    first, second, third, fourth = encoder(
        [MESSAGES[0], {}, {"chosen": turns("a", "b"), "rejected": turns("a", "b")}, MESSAGES[1]]
    )
    assert isinstance(second, Corrupt)
    assert third is None
    for side in ("chosen", "rejected"):
        assert shown(first, side) == shown(fourth, side)


def test_messages_need_a_tokenizer_that_reads_templates(counting):
    with pytest.raises(TypeError, match=r"must have encode_with_specials .*: got Counting. Use"):
        Preference(counting(), template=LINES)
    Preference(counting())


def test_it_is_an_encoder_that_travels():
    encoder = Preference(Bytes(), template=LINES)
    assert isinstance(encoder, Encoder)
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy.fingerprint == encoder.fingerprint
    for side in ("chosen", "rejected"):
        assert shown(copy(MESSAGES)[0], side) == shown(encoder(MESSAGES)[0], side)


def test_the_layout_holds_both_sides():
    layout = Preference(Bytes()).layout
    assert {name: (field.dtype, field.vocab_size) for name, field in layout.items()} == {
        "chosen": ("<u2", 258),
        "chosen_mask": ("|u1", None),
        "rejected": ("<u2", 258),
        "rejected_mask": ("|u1", None),
    }


def test_fingerprints_tell_what_changes_the_arrays(bpe):
    variants = [
        Preference(Bytes()),
        Preference(bpe),
        Preference(Bytes(), template=LINES),
        Preference(Bytes(), template=Template(LINES.source + " ")),
        Preference(Bytes(), tools_field="can"),
    ]
    assert len({encoder.fingerprint for encoder in variants}) == len(variants)
    assert Preference(Bytes()).fingerprint == variants[0].fingerprint
    assert variants[2].manifest == {
        "encoder": "preference",
        "tokenizer": "bytes/1",
        "vocab_size": 258,
        "template": LINES.fingerprint,
        "tools_field": "tools",
    }


def test_weights_of_a_preference_count_in_the_prompt_alone():
    """Its mask is the answer; messages of the prompt have no loss anyway."""
    template = Template("{% for m in messages %}{{ m.role[0] + m.content }}{% endfor %}")
    prompt = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "weight": 0},
        {"role": "user", "content": "c", "weight": 1},
    ]
    good, bad = ([{"role": "assistant", "content": text}] for text in "xy")
    encode = Preference(Bytes(), template=template)
    records = [
        {"prompt": prompt, "chosen": good, "rejected": bad},
        {"chosen": prompt + good, "rejected": prompt + bad},
    ]
    for document in encode(records):
        assert document.arrays["chosen_mask"].tolist() == [0, 0, 0, 0, 0, 0, 1, 1][-8:]
    good[0]["weight"] = 0
    for result in encode(records):
        assert "counts as a whole: got weight=0 in chosen[" in result.error
