# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Ids and masks against transformers and TRL, over the chat templates that TRL ships."""

import datetime
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from dovetail_data import Chat, Preference, Pretrained, Prompt, Template

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("default"),  # what torch and transformers warn of is theirs
]
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
trl = pytest.importorskip("trl", reason="trl is not installed")

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
TRAINING = sorted(file.name for file in TEMPLATES.glob("*_training.jinja"))
PLAIN = sorted({file.name for file in TEMPLATES.glob("*.jinja")} - set(TRAINING))
WORDS = ["What", " is", "2 * 3", "\n", "\n\n", " ", "naïve", "日本語", "😀", "def f(x):", "\t", "."]


def conversation(seed, *, parts=False):
    """Two to six messages whose texts begin and end in any way, and never are white space alone."""
    draw = random.Random(seed)
    roles = ["user", "assistant"] * draw.randint(1, 3)
    texts = ["".join(draw.choices(WORDS, k=5)) + "x" + draw.choice(WORDS) for _ in roles]
    contents = [[{"type": "text", "text": text}] for text in texts] if parts else texts
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A byte-level BPE whose special tokens are those that the templates write."""
    sources = [file.read_text() for file in sorted(TEMPLATES.glob("*.jinja"))]
    written = {name for source in sources for name in re.findall(r"<\|\w+\|>|<｜[^｜]+｜>", source)}
    specials = ["<s>", "</s>", *sorted(written | {"<end_of_turn>", "<end_of_utterance>"})]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=specials,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources + WORDS * 50, trainer)
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def ours(directory):
    return Pretrained(directory)


@pytest.fixture
def theirs(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)


def source_of(name):
    return (TEMPLATES / name).read_text(encoding="utf-8")


def template_of(name):
    return Template(source_of(name), bos="<s>", eos="</s>", now=datetime.datetime.now())


def encoded(encoder, record):
    (document,) = encoder([record])
    return document.arrays


def inside(offsets, spans):
    """Brute force: 1 where every character of an id lies in one of the spans."""
    trained = {i for start, stop in spans for i in range(start, stop)}
    return [int(set(range(start, stop)) <= trained) for start, stop in offsets]


@pytest.mark.parametrize("name", TRAINING)
def test_ids_and_masks_are_those_of_transformers(name, ours, theirs):
    template = template_of(name)
    parts = not template.takes_text
    straddling = 0
    for seed in range(20):
        messages = conversation(seed, parts=parts)
        reference = theirs.apply_chat_template(
            messages,
            chat_template=template.source,
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"return_offsets_mapping": True},
        )
        (_,), (spans,) = transformers.utils.chat_template_utils.render_jinja_template(
            [messages],
            chat_template=template.source,
            return_assistant_tokens_mask=True,
            **theirs.special_tokens_map,
        )
        arrays = encoded(Chat(ours, template=template), {"messages": messages})
        assert arrays["tokens"].tolist() == reference["input_ids"]
        assert arrays["mask"].tolist() == inside(reference["offset_mapping"], spans)
        # They count an id that straddles the border of a block, we do not; else all are equal.
        differ = np.flatnonzero(arrays["mask"] != reference["assistant_masks"])
        assert not arrays["mask"][differ].any()
        borders = {end for span in spans for end in span}
        for start, stop in np.array(reference["offset_mapping"])[differ]:
            assert any(start < border < stop for border in borders)
        straddling += len(differ)
        assert arrays["mask"].any()
    assert straddling < 20


@pytest.mark.parametrize("name", [*PLAIN, *TRAINING])
def test_prompts_are_those_of_transformers(name, ours, theirs):
    template = template_of(name)
    for seed in range(5):
        messages = conversation(seed, parts=not template.takes_text)[:-1]
        reference = theirs.apply_chat_template(
            messages, chat_template=template.source, add_generation_prompt=True, return_dict=True
        )
        arrays = encoded(Prompt(ours, template=template), {"prompt": messages})
        assert arrays["tokens"].tolist() == reference["input_ids"]


def test_a_tool_call_with_reasoning_is_rendered_as_by_transformers(ours, theirs):
    tools = [{"type": "function", "function": {"name": "f", "description": "<f> & é"}}]
    call = {"type": "function", "function": {"name": "f", "arguments": {"b": 2, "a": "<é>"}}}
    messages = [
        {"role": "user", "content": "Call it"},
        {"role": "assistant", "content": None, "reasoning": "I must", "tool_calls": [call]},
        {"role": "tool", "name": "f", "content": "6"},
        {"role": "assistant", "content": "Six", "tool_calls": None},
    ]
    for name in ("qwen3_training.jinja", "glm4moe_training.jinja", "gptoss_training.jinja"):
        reference = theirs.apply_chat_template(
            messages,
            tools=tools,
            chat_template=source_of(name),
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        record = {"messages": messages, "tools": json.dumps(tools)}
        arrays = encoded(Chat(ours, template=template_of(name)), record)
        assert arrays["tokens"].tolist() == reference["input_ids"]
        assert arrays["mask"].tolist() == reference["assistant_masks"]


@pytest.mark.parametrize("name", [*PLAIN, *TRAINING])
@pytest.mark.parametrize("kind", ["given", "text"])
def test_a_call_with_a_null_content_is_rendered_as_by_transformers(name, kind, theirs):
    """Left out, as `apply_chat_template` does since 5, or else there, as before."""
    source = source_of(name)
    arguments = {"b": 2, "a": "<é>"}
    given = arguments if kind == "given" else json.dumps(arguments)
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": given}}
    asked, answer = conversation(3)[:2]
    messages = [
        asked,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "6"},
        answer,
    ]
    options = {"chat_template": source, "bos_token": "<s>", "eos_token": "</s>"}
    rendered = []
    for form in (lambda m: {k: x for k, x in m.items() if x is not None}, dict):
        try:
            (text,), _ = transformers.utils.chat_template_utils.render_jinja_template(
                [[form(message) for message in messages]], **options
            )
        except Exception:
            continue
        rendered.append(text)
    template = template_of(name)
    if rendered:
        assert template.render(messages).text == rendered[0]
    else:
        with pytest.raises(ValueError, match="must take the messages"):
            template.render(messages)


def test_trimmed_offsets_cost_transformers_the_mask_and_us_nothing(directory, tmp_path):
    content = json.loads((directory / "tokenizer.json").read_text())
    content["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_bytes(
        (directory / "tokenizer_config.json").read_bytes()
    )
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " is it?"}]
    source = source_of("llama3_training.jinja").replace(" | trim", "")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        messages, chat_template=source, return_dict=True, return_assistant_tokens_mask=True
    )
    template = Template(source, bos="<s>", eos="</s>")
    arrays = encoded(Chat(Pretrained(tmp_path), template=template), {"messages": messages})
    assert arrays["tokens"].tolist() == reference["input_ids"]
    assert sum(reference["assistant_masks"]) == 0
    answer = arrays["tokens"][arrays["mask"] > 0]
    assert Pretrained(tmp_path).decode(answer) == " is it?"


def test_special_tokens_of_a_saved_model_reach_the_template(directory, theirs, tmp_path):
    theirs.chat_template = "{{ bos_token }}{{ messages[0].content }}{{ pad_token }}{{ eos_token }}"
    theirs.pad_token = "<|im_end|>"
    theirs.save_pretrained(tmp_path)
    template = Template.load(tmp_path)
    messages = [{"role": "user", "content": "Hi"}]
    assert template.render(messages).text == theirs.apply_chat_template(messages, tokenize=False)
    assert template.render(messages).text == "<s>Hi<|im_end|></s>"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = transformers.LlamaConfig(
        vocab_size=1200,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        pad_token_id=1,
    )
    path = tmp_path_factory.mktemp("model")  # TRL reads its reference model from there
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return transformers.LlamaForCausalLM.from_pretrained(path)


def test_supervised_fine_tuning_is_prepared_as_by_trl(model, ours, theirs, tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    theirs.chat_template = source_of("qwen2_5.jinja")  # which TRL replaces by its training variant
    conversations = [conversation(seed) for seed in range(8)]
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path),
        assistant_only_loss=True,
        max_length=None,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = trl.SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_list([{"messages": chat} for chat in conversations]),
        processing_class=theirs,
    )
    template = template_of("qwen2_5_training.jinja")
    for messages, row in zip(conversations, trainer.train_dataset, strict=True):
        arrays = encoded(Chat(ours, template=template), {"messages": messages})
        assert arrays["tokens"].tolist() == row["input_ids"]
        labels = np.where(arrays["mask"] > 0, arrays["tokens"], -100)
        assert labels.tolist() == row["labels"]


def prepared_by_dpo(records, model, theirs, path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    trainer = trl.DPOTrainer(
        model=model,
        args=trl.DPOConfig(
            output_dir=str(path), max_length=None, use_cpu=True, bf16=False, report_to="none"
        ),
        train_dataset=datasets.Dataset.from_list(records),
        processing_class=theirs,
    )
    return list(trainer.train_dataset)


@pytest.mark.parametrize("implicit", [False, True])
def test_preferences_in_messages_are_prepared_as_by_trl(model, ours, theirs, tmp_path, implicit):
    theirs.chat_template = source_of("qwen2_5.jinja")
    records = []
    for seed in range(8):
        *prompt, chosen = conversation(seed)
        rejected = {"role": "assistant", "content": f"{seed} another"}
        sides = {"chosen": [chosen], "rejected": [rejected]}
        whole = {side: prompt + answer for side, answer in sides.items()}
        records.append(whole if implicit else {"prompt": prompt, **sides})
    encoder = Preference(ours, template=template_of("qwen2_5.jinja"))
    rows = prepared_by_dpo(records, model, theirs, tmp_path)
    for record, row in zip(records, rows, strict=True):
        arrays = encoded(encoder, record)
        for side in ("chosen", "rejected"):
            assert arrays[side].tolist() == row["prompt_ids"] + row[f"{side}_ids"]
            mask = [0] * len(row["prompt_ids"]) + [1] * len(row[f"{side}_ids"])
            # An answer that begins with a newline may share an id with the end of the prompt. TRL
            # then counts that end as part of both answers.
            differ = np.flatnonzero(arrays[f"{side}_mask"] != mask).tolist()
            if record["chosen"][-1]["content"].startswith(("\n", " ", "\t")):
                assert set(differ) <= {len(row["prompt_ids"])}
            else:
                assert differ == []


def test_preferences_in_strings_are_prepared_as_by_trl(model, ours, theirs, tmp_path):
    records = [
        {"prompt": "What is 2 * 3?", "chosen": " naïve 日本語", "rejected": " 😀"},
        {"prompt": "def f(x):", "chosen": "\n\tis", "rejected": " What"},
    ]
    for record, row in zip(records, prepared_by_dpo(records, model, theirs, tmp_path), strict=True):
        arrays = encoded(Preference(ours), record)
        for side in ("chosen", "rejected"):
            # The tokenizer's post-processor adds no bos, so neither does.
            assert arrays[side].tolist() == row["prompt_ids"] + row[f"{side}_ids"]
            mask = [0] * len(row["prompt_ids"]) + [1] * len(row[f"{side}_ids"])
            assert arrays[f"{side}_mask"].tolist() == mask


def test_an_id_that_straddles_prompt_and_answer_counts_for_trl_and_not_for_us(
    model, ours, theirs, tmp_path
):
    record = {"prompt": "Wh", "chosen": "at", "rejected": "en"}
    (row,) = prepared_by_dpo([record], model, theirs, tmp_path)
    arrays = encoded(Preference(ours), record)
    (what,) = ours.encode(["What"])
    assert len(what.ids) == 1  # one id for both texts
    assert arrays["chosen"].tolist() == [*what.ids.tolist(), ours.eos_id]
    assert (row["prompt_ids"], row["chosen_ids"]) == ([], [*what.ids.tolist(), ours.eos_id])
    assert arrays["chosen_mask"].tolist() == [0, 1]
