# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conversations and pairs as a model reads them: its chat template, and forms of records."""

import datetime
import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from dovetail_data import Chat, Corpus, Corrupt, Document, Pretrained, Template
from dovetail_data.sources.source import Record
from dovetail_data.tokenizing.template_files import read_json, text_of
from dovetail_models import generation_defaults
from dovetail_models.hf.directory import CONFIG_FILE, GENERATION_FILE
from dovetail_stack.recipes.record_options import CHATML, Dialogue

TEMPLATE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"
_SIDES = ("prompt", "chosen", "rejected")


def template_of(directory: Path, dialogue: Dialogue) -> Template:
    """Returns the chat template of a model, or the one of `dialogue` with the model's tokens.

    A date is also the `date_string` of templates that have this variable, as Llama 3.1.

    Raises ValueError if neither has a template, or it is not Jinja.
    """
    now = None if dialogue.date is None else datetime.datetime.fromisoformat(dialogue.date)
    if dialogue.template == CHATML:
        return Template.chatml(Pretrained(directory))
    config = read_json(directory / _CONFIG)
    if dialogue.template is None:
        if not (directory / TEMPLATE).is_file() and "chat_template" not in config:
            raise ValueError(
                f"a model must have a chat template to read messages, got {str(directory)!r} with "
                f"neither {TEMPLATE} nor a chat_template in {_CONFIG}: pass template=chatml, or "
                "template= a .jinja file"
            )
        template = Template.load(directory, now=now)
    else:
        file = Path(dialogue.template)
        if not file.is_file():
            raise ValueError(
                f"template must be a file or chatml, got template={str(file)!r}: pass a .jinja "
                "file, or template=chatml"
            )
        bos, eos = (text_of(config.get(name)) for name in ("bos_token", "eos_token"))
        template = Template(file.read_text(encoding="utf-8"), bos=bos, eos=eos, now=now)
    if now is None or "date_string" not in template.source:
        return template
    given = {**template.variables, "date_string": f"{now:%d %b %Y}"}
    tokens = {name: given.pop(f"{name}_token", "") for name in ("bos", "eos")}
    return Template(template.source, **tokens, variables=given, now=now)


def turn_ends(template: Template, tokenizer: Pretrained) -> set[int]:
    """Returns the special ids with which a template ends a turn of the assistant."""
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (document,) = Chat(tokenizer, template=template)([{"messages": said}])
    if not isinstance(document, Document):  # its conversations have another form
        return set()
    tokens, mask = (document.arrays[name] for name in ("tokens", "mask"))
    return answer_ends([tokens[mask > 0]], tokenizer)


def answered(record: Record) -> Record | Corrupt:
    """Returns the record, or `Corrupt` if it has no message of the assistant."""
    messages = record.get("messages")
    if not isinstance(messages, list):  # the encoder says what it must be
        return record
    roles = [m.get("role") if isinstance(m, dict) else None for m in messages]
    if "assistant" in roles:
        return record
    return Corrupt(
        f"a conversation must have a message of the assistant to learn, got the roles {roles}: add "
        "the answer, or take the record out"
    )


def as_messages(record: Record) -> Record:
    """Returns a pair with texts as messages of the user and the assistant; others as they are."""
    if not all(isinstance(record.get(name), str) for name in _SIDES):
        return record
    roles = ("user", "assistant", "assistant")
    said = {
        name: [{"role": role, "content": record[name]}]
        for name, role in zip(_SIDES, roles, strict=True)
    }
    return {**record, **said}


def held_out_prompts(corpus: Corpus, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (ids of the prompt, ids of the first trained answer) of the first `count` documents.

    They are conversations or pairs; of a pair it is the chosen answer.
    """
    name, mask_name = ("chosen", "chosen_mask") if "chosen" in corpus.fields else ("tokens", "mask")
    prompts = []
    for i in range(min(count, len(corpus))):
        document = corpus[i]
        ids, trained = document[name], document[mask_name].astype(bool)
        start = max(1, int(trained.argmax()))  # the first id is no target
        stop = start + int((~trained[start:]).argmax()) if not trained[start:].all() else len(ids)
        prompts.append((ids[:start], ids[start:stop]))
    return prompts


def answer_ends(answers: Iterable[Sequence[int] | np.ndarray], tokenizer: Pretrained) -> set[int]:
    """Returns the special ids that end answers: the template's end of a turn.

    Each answer is its trained ids. Spaces may follow its end, as in ChatML.
    """
    ends: set[int] = set()
    for answer in answers:
        for token in reversed([int(i) for i in answer]):
            name = tokenizer.name_of(token)
            if name is not None and tokenizer.find_special(name) == name:
                ends.add(token)
            if tokenizer.decode([token]).strip() or token in ends:
                break
    return ends


def add_ends(directory: Path, ids: Collection[int]) -> None:
    """Adds ids to those that end a text, in the file that transformers takes them from.

    A model that was tuned with another template than its own ends its turns by another id. Files
    that name all ids are left as they are.
    """
    known = generation_defaults(directory).eos_ids
    if set(ids) <= set(known):
        return
    file = directory / GENERATION_FILE
    file = file if file.is_file() else directory / CONFIG_FILE
    keys = json.loads(file.read_text(encoding="utf-8"))
    keys["eos_token_id"] = sorted({*known, *ids})
    file.write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n", encoding="utf-8")
