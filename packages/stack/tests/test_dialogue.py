# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import numpy as np
import pytest
import tokenizers

from dovetail_data import Chat, Corrupt, Preference, Pretrained, hold_out, jsonl, values, write
from dovetail_stack.recipes import dialogue
from dovetail_stack.recipes.record_options import Dialogue

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@pytest.fixture
def copied(talker, tmp_path):
    shutil.copytree(talker, tmp_path / "model")
    return tmp_path / "model"


def test_the_template_is_the_directorys_unless_a_file_is_named(copied, tmp_path):
    own = dialogue.template_of(copied, Dialogue())
    eos = json.loads((copied / "tokenizer_config.json").read_text())["eos_token"]
    assert own.render(MESSAGES).text == f"[user]hi[assistant]ho{eos}"
    (tmp_path / "other.jinja").write_text("{{ messages[1].content }}{{ bos_token }}{{ eos_token }}")
    other = dialogue.template_of(copied, Dialogue(template=str(tmp_path / "other.jinja")))
    bos = json.loads((copied / "tokenizer_config.json").read_text())["bos_token"]
    assert other.render(MESSAGES).text == f"ho{bos}{eos}"


def test_special_tokens_may_be_objects_or_absent(copied, tmp_path):
    file = copied / "tokenizer_config.json"
    keys = json.loads(file.read_text())
    keys["eos_token"] = {"content": keys["eos_token"], "lstrip": False}
    del keys["bos_token"]
    file.write_text(json.dumps(keys))
    (tmp_path / "other.jinja").write_text("<{{ bos_token }}|{{ eos_token }}>")
    made = dialogue.template_of(copied, Dialogue(template=str(tmp_path / "other.jinja")))
    assert made.render(MESSAGES).text == f"<|{keys['eos_token']['content']}>"


def test_a_date_is_the_one_that_is_given(copied):
    (copied / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}")
    made = dialogue.template_of(copied, Dialogue(date="2026-01-31"))
    assert made.render(MESSAGES).text == "31 Jan 2026"
    with pytest.raises(ValueError, match=r"date must be a day .*got date='31.1.'.*try date=2026"):
        Dialogue(date="31.1.")


def test_a_date_is_also_the_date_string_of_a_template_with_this_variable(copied):
    (copied / "chat_template.jinja").write_text(
        "{{ bos_token }}{{ date_string | default('never') }}{{ eos_token }}"
    )
    keys = json.loads((copied / "tokenizer_config.json").read_text())
    for date, shown in ((None, "never"), ("2026-01-31", "31 Jan 2026")):
        text = dialogue.template_of(copied, Dialogue(date=date)).render(MESSAGES).text
        assert text == keys["bos_token"] + shown + keys["eos_token"]


@pytest.mark.capability("chatml for a model without a chat template")
def test_chatml_needs_no_template_and_ends_turns_by_an_id_that_stops(copied):
    (copied / "chat_template.jinja").unlink()
    tokenizer = Pretrained(copied)
    template = dialogue.template_of(copied, Dialogue(template="chatml"))
    assert template.render(MESSAGES).text == (
        "<|bos|><|im_start|>user\nhi<|eos|>\n<|im_start|>assistant\nho<|eos|>\n"
    )
    assert dialogue.turn_ends(template, tokenizer) == {tokenizer.eos_id}
    whole = tokenizers.Tokenizer.from_file(str(copied / "tokenizer.json"))
    whole.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    whole.save(str(copied / "tokenizer.json"))
    tokenizer = Pretrained(copied)
    template = dialogue.template_of(copied, Dialogue(template="chatml"))
    assert template.render(MESSAGES[:1]).text == "<|bos|><|im_start|>user\nhi<|im_end|>\n"
    (end,) = dialogue.turn_ends(template, tokenizer)
    assert tokenizer.name_of(end) == "<|im_end|>"


def test_a_model_without_a_template_is_refused(copied, tmp_path):
    (copied / "chat_template.jinja").unlink()
    with pytest.raises(
        ValueError, match=r"must have a chat template.*got '.*model'.*template=chatml"
    ):
        dialogue.template_of(copied, Dialogue())
    keys = json.loads((copied / "tokenizer_config.json").read_text())
    keys["chat_template"] = "{{ messages[0].content }}"
    (copied / "tokenizer_config.json").write_text(json.dumps(keys))
    assert dialogue.template_of(copied, Dialogue()).render(MESSAGES).text == "hi"
    with pytest.raises(
        ValueError, match=r"a file or chatml, got template='.*none.*template=chatml"
    ):
        dialogue.template_of(copied, Dialogue(template=str(tmp_path / "none.jinja")))


def test_a_conversation_without_an_answer_is_corrupt():
    assert dialogue.answered({"messages": MESSAGES}) == {"messages": MESSAGES}
    refused = dialogue.answered({"messages": [MESSAGES[0], "x"]})
    assert isinstance(refused, Corrupt)
    assert "got the roles ['user', None]: add the answer" in refused.error
    assert dialogue.answered({"messages": "text"}) == {"messages": "text"}  # the encoder's to say


def test_texts_of_a_pair_become_messages():
    pair = {"prompt": "p", "chosen": "c", "rejected": "r", "margin": 2}
    assert dialogue.as_messages(pair) == {
        "prompt": [{"role": "user", "content": "p"}],
        "chosen": [{"role": "assistant", "content": "c"}],
        "rejected": [{"role": "assistant", "content": "r"}],
        "margin": 2,
    }
    for name in ("prompt", "chosen", "rejected"):
        mixed = {**pair, name: MESSAGES}
        assert dialogue.as_messages(mixed) == mixed


@pytest.mark.parametrize("kind", ["chats", "preferred"])
def test_held_out_prompts_are_cut_where_the_answer_begins(kind, talker, request, tmp_path):
    file = request.getfixturevalue(kind)
    tokenizer = Pretrained(talker)
    template = dialogue.template_of(talker, Dialogue())
    encoder = (Chat if kind == "chats" else Preference)(tokenizer, template=template)
    _, held = hold_out(jsonl(file), share=0.3, form=dialogue.as_messages)
    corpus = write(held, tmp_path / "c", encoder=encoder)
    prompts = dialogue.held_out_prompts(corpus, 3)
    assert len(prompts) == 3
    said = [json.loads(line) for line in file.read_text().splitlines()]
    answers = {
        f"[user]{r['messages'][0]['content']}[assistant]": r["messages"][1]["content"]
        if "messages" in r
        else None
        for r in said
        if "messages" in r
    } or {f"[user]{r['prompt']}[assistant]": r["chosen"] for r in said}
    for prompt, wanted in prompts:
        assert tokenizer.decode(wanted) == answers[tokenizer.decode(prompt)]
        assert wanted[-1] == tokenizer.eos_id
    assert len(dialogue.held_out_prompts(corpus, 99)) == len(corpus)


def test_numbers_of_the_records_stay_with_their_pairs(talker):
    tokenizer, template = Pretrained(talker), dialogue.template_of(talker, Dialogue())
    encoder = Preference(tokenizer, template=template, fields={"margin": values("float32")})
    pair = dialogue.as_messages({"prompt": "p", "chosen": "c", "rejected": "r", "margin": 2})
    assert np.array_equal(encoder([pair])[0].arrays["margin"], np.float32(2))


def test_the_end_of_a_turn_is_the_last_special_id_of_an_answer(copied):
    content = json.loads((copied / "tokenizer.json").read_text())
    for i, name in ((288, "<|im_end|>"), (289, "<think>")):
        content["added_tokens"].append({**content["added_tokens"][0], "id": i, "content": name})
    (copied / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Pretrained(copied)
    word, space = tokenizer.encode(["say", "\n"])
    said = [289, *word.ids]
    answers = [[*said, 288, *space.ids], np.array([*said, tokenizer.eos_id]), said, []]
    assert dialogue.answer_ends(answers, tokenizer) == {288, tokenizer.eos_id}


def test_an_export_ends_by_the_ids_of_its_template_too(copied):
    before = (copied / "config.json").read_bytes()
    eos = json.loads(before)["eos_token_id"]
    dialogue.add_ends(copied, {eos})
    assert (copied / "config.json").read_bytes() == before
    dialogue.add_ends(copied, {eos, 300})
    assert json.loads((copied / "config.json").read_text())["eos_token_id"] == [eos, 300]
    generation = {"eos_token_id": eos, "top_p": 0.9, "transformers_version": "5.0"}
    (copied / "generation_config.json").write_text(json.dumps(generation))
    dialogue.add_ends(copied, {301})
    found = json.loads((copied / "generation_config.json").read_text())
    assert found == {**generation, "eos_token_id": [eos, 300, 301]}
