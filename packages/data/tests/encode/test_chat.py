# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import inspect
import pickle

import numpy as np
import pytest
import tokenizers
from dialogues import CHATML, FORGETFUL, LLAMA, MISTRAL, TEXTS, encoded, shown, turns
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Bytes, Chat, Corrupt, Encoder, Pretrained, Template

pytestmark = pytest.mark.capability("chat masks from published templates")


def test_what_follows_the_generation_prompt_is_learnt():
    document = encoded(CHATML, turns("Hi", "Ho", "A?", "B."))
    assert shown(document) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Ho<|im_end|>\n]"
        "<|im_start|>user\nA?<|im_end|>\n<|im_start|>assistant\n[B.<|im_end|>\n]"
    )
    assert document.arrays["tokens"].dtype == np.int32
    assert document.arrays["mask"].dtype == np.uint8
    assert document.text_bytes == 0


def test_what_blocks_write_is_learnt():
    document = encoded(LLAMA, turns("Hi", " Ho ", "A?", "B."))
    assert shown(document) == (
        "^<|head|>user<|end_head|>\n\nHi$<|head|>assistant<|end_head|>\n\n[Ho$]"
        "<|head|>user<|end_head|>\n\nA?$<|head|>assistant<|end_head|>\n\n[B.$]"
    )


def test_a_template_without_a_generation_prompt_needs_none():
    document = encoded(MISTRAL, turns("Hi", "Ho", "A?", "B."))
    assert shown(document) == "^[INST] Hi [/INST][ Ho$][INST] A? [/INST][ B.$]"


@pytest.mark.parametrize(
    "template, last",
    [(CHATML, "B.<|im_end|>\n"), (LLAMA, "B.$"), (MISTRAL, " B.$")],
    ids=["chatml", "llama", "mistral"],
)
@pytest.mark.parametrize("more", [[], ["Then?"]])
def test_the_last_message_alone_is_learnt(template, last, more):
    document = encoded(template, turns("Hi", "Ho", "A?", "B.", *more), train_on="last")
    learnt = document.arrays["tokens"][document.arrays["mask"] > 0]
    assert "".join({257: "$"}.get(i, chr(i)) for i in learnt.tolist()) == last


def test_a_message_of_several_blocks_is_learnt_whole():
    template = Template(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% for c in m.content %}"
        "{% generation %}{{ c }}{% endgeneration %}-{% endfor %}{% else %}{{ m.content }}"
        "{% endif %}{% endfor %}"
    )
    messages = turns("a", "bc", "d", "ef")
    assert shown(encoded(template, messages)) == "a[b]-[c]-d[e]-[f]-"
    assert shown(encoded(template, messages, train_on="last")) == "ab-c-d[e]-[f]-"


def test_a_conversation_may_begin_with_what_is_learnt():
    messages = [{"role": "assistant", "content": "Ho"}]
    document = encoded(CHATML, messages, train_on="last")
    assert shown(document) == "<|im_start|>assistant\n[Ho<|im_end|>\n]"
    template = Template(
        "{{ messages[0].role[0] + ':' }}{% for m in messages %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% endfor %}"
    )
    assert shown(encoded(template, messages, train_on="last")) == "a:[Ho]"
    document = encoded(LLAMA, messages, train_on="last")
    assert shown(document) == "^<|head|>assistant<|end_head|>\n\n[Ho$]"


def test_all_ids_but_the_first_are_learnt():
    document = encoded(MISTRAL, turns("Hi", "Ho"), train_on="all")
    assert shown(document) == "^[[INST] Hi [/INST] Ho$]"
    assert shown(encoded(FORGETFUL, turns("Hi", "a</think>Ho", "A?"), train_on="all")) == (
        "u[ser:Hi\nassistant:Ho\nuser:A?\n]"
    )


def test_what_blocks_write_is_learnt_whoever_says_it():
    template = Template(
        "{% for m in messages %}-{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    messages = turns("a", "b", "c", "d")
    assert shown(encoded(template, messages)) == "-[a]-[b]-[c]-[d]"
    assert shown(encoded(template, messages, train_on="last")) == "-a-b-c-[d]"


@pytest.mark.thorough
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=2, max_size=5))
@settings(max_examples=25, deadline=None)
def test_any_conversation_is_masked_by_its_bytes(texts):
    messages = turns(*texts)
    expected = []
    for message in messages:
        said = message["role"] == "assistant"
        head, body = f"<|im_start|>{message['role']}\n", f"{message['content']}<|im_end|>\n"
        expected += [(byte, 0) for byte in head.encode()]
        expected += [(byte, int(said)) for byte in body.encode()]
    blocks = Template(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}{% else %}"
        "{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    )
    for template in (CHATML, blocks):
        arrays = encoded(template, messages).arrays
        assert list(zip(arrays["tokens"], arrays["mask"], strict=True)) == expected


@pytest.fixture
def merges(tmp_path):
    """Characters as ids, "a\n" as one id, and two special tokens of which text is part."""
    vocabulary = {c: i for i, c in enumerate(["a", "b", "\n", ":", "a\n", "<", "|", ">", "é"])}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "\n")]))
    library.add_special_tokens(["<|eos|>", "<|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    return Pretrained(tmp_path)


SPOKEN = Template("{% for m in messages %}{{ m.content + ':' }}{% endfor %}")
SPLIT = Template(
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{{ '\n<|>' }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def test_an_id_that_straddles_the_border_is_not_learnt(merges):
    document = encoded(SPLIT, turns("b", "ba"), tokenizer=merges)
    assert document.arrays["tokens"].tolist() == [1, 1, 4, 10]  # b, b, a+newline, <|>
    assert document.arrays["mask"].tolist() == [0, 1, 0, 0]
    document = encoded(SPLIT, turns("b", "éb"), tokenizer=merges)
    assert document.arrays["tokens"].tolist() == [1, 8, 1, 2, 10]
    assert document.arrays["mask"].tolist() == [0, 1, 1, 0, 0]


def test_special_tokens_of_the_template_become_their_ids_and_of_messages_never(merges):
    tokens = encoded(SPLIT, turns("<", "|b"), tokenizer=merges).arrays["tokens"]
    assert tokens.tolist() == [5, 6, 1, 2, 10]  # <, |, b, newline, <|>
    result = encoded(SPLIT, turns("b", "a<|>"), tokenizer=merges)
    assert isinstance(result, Corrupt)
    assert result.error == (
        "a message must not hold the text of a special token: got '<|>' in messages[1]. Take it "
        "out: it would become the token, which only the template may write."
    )


def test_nothing_to_learn_is_dropped(merges):
    assert encoded(CHATML, turns("Hi")) is None
    assert encoded(LLAMA, turns("Hi")) is None
    assert encoded(LLAMA, turns("Hi"), train_on="last") is None
    assert encoded(SPLIT, turns("b", "a"), tokenizer=merges) is None  # the only id straddles
    assert encoded(SPOKEN, turns("", "b")[1:], tokenizer=merges).arrays["mask"].tolist() == [1, 1]
    first = Template("{% generation %}{{ messages[0].content }}{% endgeneration %}!")
    assert encoded(first, turns("a")) is None  # learnt, but no target: it is the first id
    assert encoded(Template("{{ messages[0].content }}"), turns("a"), train_on="all") is None


@pytest.mark.parametrize("train_on, expected", [("assistant", "[b\n]"), ("last", "[b\n]")])
def test_a_template_that_rewrites_what_was_said_is_learnt_as_it_renders_the_whole(
    train_on, expected
):
    document = encoded(FORGETFUL, turns("x", "a</think>b", "c"), train_on=train_on)
    assert shown(document) == f"user:x\nassistant:{expected}user:c\n"


# By index, so there is no message in a loop's variable: its turns cannot be told apart.
INDEXED = Template(
    "{% for i in range(messages | length) %}{{ messages[i].role + ':' }}"
    "{{ messages[i].content if loop.last else messages[i].content.split('</think>')[-1] }}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


@pytest.mark.parametrize("train_on", ["assistant", "last"])
def test_an_ambiguous_conversation_is_corrupt_and_others_are_not(train_on):
    chat = Chat(Bytes(), template=INDEXED, train_on=train_on)
    records = [turns("x", "a"), turns("x", "a</think>b", "c"), turns("x", "b", "c")]
    first, refused, last = chat([{"messages": messages} for messages in records])
    assert shown(first) == "user:x\nassistant:[a\n]"
    assert shown(last) == "user:x\nassistant:[b\n]user:c\n"
    assert isinstance(refused, Corrupt)
    assert refused.error == (
        "ambiguous template: it must render the first messages as it begins to render all: got "
        "'a</think>b\\n' alone and 'b\\nuser:c\\n' among all, at character 17. Add "
        '{% generation %} blocks around what the assistant says, or pass train_on="all".'
    )


def test_a_generation_prompt_that_the_answer_does_not_keep_is_a_heading_as_far_as_it_does():
    template = Template(
        "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:<think>' }}{% endif %}"
    )
    assert shown(encoded(template, turns("Hi", "Ho"))) == "user:Hiassistant:[Ho]"


def test_what_no_message_precedes_is_looked_at_where_it_is_learnt():
    document = encoded(FORGETFUL, turns("x", "a</think>b"))
    assert shown(document) == "user:x\nassistant:[a</think>b\n]"


@pytest.mark.parametrize(
    "record, message",
    [
        ({"text": "a"}, "a chat must be a list of messages: got messages=None."),
        ({"messages": [{"role": "system", "content": ""}]}, "got TemplateError: only user and as"),
        ({"messages": turns("a", "b"), "tools": 3}, "tools must be a list of JSON schemas"),
        ({"messages": turns("a\ud800", "b")}, "text must be Unicode without lone surrogates: got"),
    ],
)
def test_what_is_no_conversation_is_corrupt_in_its_place(record, message):
    good = {"messages": turns("Hi", "Ho")}
    chat = Chat(Bytes(), template=MISTRAL)
    first, second, third = chat([good, record, good])
    assert isinstance(second, Corrupt)
    assert message in second.error
    assert shown(first) == shown(third) == "^[INST] Hi [/INST][ Ho$]"


def test_other_fields_may_hold_the_messages_and_the_tools():
    template = Template("{{ tools | tojson }}{% for m in messages %}/{{ m.content }}{% endfor %}")
    record = {"talk": turns("a", "b"), "can": [1], "tools": [2], "messages": []}
    options = {"field": "talk", "tools_field": "can", "train_on": "all"}
    (document,) = Chat(Bytes(), template=template, **options)([record])
    assert shown(document) == "[[1]/a/b]"
    (document,) = Chat(Bytes(), template=template, **{**options, "tools_field": None})([record])
    assert shown(document) == "n[ull/a/b]"


@pytest.mark.parametrize("train_on", ["assistant", "last"])
@pytest.mark.parametrize("template", [CHATML, LLAMA, MISTRAL], ids=["chatml", "llama", "mistral"])
def test_tools_are_there_for_every_rendering(template, train_on):
    needed = "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}{{ tools[0].name }}"
    with_tools = Template(needed + template.source, **TEXTS)
    messages = turns("Hi", "Ho", "A?", "B.")
    chat = Chat(Bytes(), template=with_tools, train_on=train_on)
    (document,) = chat([{"messages": messages, "tools": '[{"name": "f"}]'}])
    assert shown(document) == f"f{shown(encoded(template, messages, train_on=train_on))}"


def test_it_is_an_encoder_that_travels():
    chat = Chat(Bytes(), template=LLAMA)
    assert isinstance(chat, Encoder)
    records = [{"messages": turns("Hi", "Ho")}, {"messages": 1}, {"messages": turns("Hi")}]
    copy = pickle.loads(pickle.dumps(chat))
    assert copy.fingerprint == chat.fingerprint
    assert shown(copy(records)[0]) == shown(chat(records)[0])
    assert copy(records)[1:] == chat(records)[1:]
    together = [shown(document) for document in chat(records[:1] * 3)]
    assert together == [shown(chat(records)[0])] * 3


def test_the_layout_holds_ids_and_marks():
    layout = Chat(Bytes(), template=LLAMA).layout
    assert (layout["tokens"].dtype, layout["tokens"].vocab_size) == ("<u2", 258)
    assert (layout["mask"].dtype, layout["mask"].vocab_size) == ("|u1", None)


@pytest.mark.thorough
def test_fingerprints_tell_what_changes_the_arrays(bpe):
    variants = [
        Chat(Bytes(), template=LLAMA),
        Chat(bpe, template=LLAMA),
        Chat(Bytes(), template=MISTRAL),
        Chat(Bytes(), template=LLAMA, train_on="last"),
        Chat(Bytes(), template=LLAMA, train_on="all"),
        Chat(Bytes(), template=LLAMA, field="talk"),
        Chat(Bytes(), template=LLAMA, tools_field=None),
    ]
    assert len({chat.fingerprint for chat in variants}) == len(variants)
    assert Chat(Bytes(), template=LLAMA).fingerprint == variants[0].fingerprint
    assert variants[0].manifest == {
        "encoder": "chat",
        "tokenizer": "bytes/1",
        "vocab_size": 258,
        "template": LLAMA.fingerprint,
        "train_on": "assistant",
        "field": "messages",
        "tools_field": "tools",
    }


def test_an_unknown_choice_is_an_error():
    message = r'train_on must be "assistant", "last" or "all": got train_on=\'user\'. Pass one'
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(Chat.__init__)(Chat.__new__(Chat), Bytes(), template=LLAMA, train_on="user")
