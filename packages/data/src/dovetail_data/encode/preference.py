# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Preference pairs: two answers to one prompt, one of them preferred."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data.encode import _chats
from dovetail_data.encode._values import with_values
from dovetail_data.encode.encoder import Document
from dovetail_data.record import Field, check_fields, described_fields, ids
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizing.template import Template
from dovetail_data.tokenizing.tokenizer import Encoding, Tokenizer

_SIDES = ("chosen", "rejected")


@_elsewhere.text
class Preference(_chats.Templated):
    """Encodes preference pairs: `chosen`, `chosen_mask`, `rejected`, `rejected_mask`.

    Without a template, "prompt", "chosen" and "rejected" are strings. Each side is bos (if the
    tokenizer has one), the ids of prompt and answer as one text, and eos. With a template, they are
    lists of messages, rendered. "prompt" may then be absent, or be the text of a message, if both
    answers begin with the messages of the prompt.

    The mask is 1 for an id with all of its characters in the answer, and for the eos. In messages
    the answer is everything after the generation prompt. A record with two equal answers is
    dropped, as is one that has an answer without an id of its own. Nothing is cut.

    Args:
        tokenizer: With a template it must be a `ChatTokenizer`.
        template: The chat template. None for records of strings.
        tools_field: Name of the field with the tools on offer, a list or its JSON. None ignores
            tools.
        fields: Other fields of the records to keep, as arrays of a fixed shape, such as
            {"margin": values("float32")}. Both rows of a pair have them.
        ignore_keys: Keys of messages to leave out, though the template does not read them.

    Raises:
        TypeError: The tokenizer cannot read the output of templates.
        ValueError: While writing: a rendered answer does not begin with the generation prompt.

    Example:

        >>> from dovetail_data import Bytes
        >>> record = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
        >>> Preference(Bytes())([record])[0].arrays["chosen_mask"]
        array([0, 0, 0, 0, 0, 1, 1], dtype=uint8)
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: Template | None = None,
        tools_field: str | None = "tools",
        fields: Mapping[str, Field] | None = None,
        ignore_keys: Sequence[str] = (),
    ) -> None:
        super().__init__(tokenizer, template, tools_field=tools_field, ignore_keys=ignore_keys)
        mask = Field(dtype="|u1")
        own = {
            name: field
            for side in _SIDES
            for name, field in ((side, ids(tokenizer.vocab_size)), (f"{side}_mask", mask))
        }
        self._fields = check_fields(fields, own=own, per_token=False)
        self.layout: Mapping[str, Field] = {**own, **self._fields}
        self.manifest: Mapping[str, Any] = {
            "encoder": "preference",
            "tokenizer": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "template": None if template is None else template.fingerprint,
            "tools_field": tools_field,
            **described_fields(self._fields),
            **_chats.ignored(ignore_keys),
        }
        self.fingerprint: str = _chats.digest(self.manifest)

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        return with_values(records, self.encoded(records), self._fields)

    def _prepare_text(self, record: Record) -> _chats.Prepared | None:
        given = [record.get(field) for field in ("prompt", *_SIDES)]
        prompt, *answers = [text for text in given if isinstance(text, str)] or [""]
        if len(answers) != len(_SIDES):
            raise _chats.MalformedError(
                "a preference without a template must have strings as prompt, chosen and rejected: "
                f"got {_types(record)}. Write those, or pass template= for messages."
            )
        if answers[0] == answers[1]:
            return None
        texts = [prompt + answer for answer in answers]
        finish = functools.partial(self._document, len(prompt), texts, ended=False)
        return _chats.Prepared(texts=texts, finish=finish)

    def _prepare_chat(self, renderer: _chats.Renderer, record: Record) -> _chats.Prepared | None:
        prompt, *answers = _conversations(renderer, record)
        if answers[0] == answers[1]:
            return None
        tools = renderer.tools(record, self.tools_field)
        before = renderer.text(prompt, tools=tools, add_generation_prompt=True).text
        texts = [renderer.text(prompt + answer, tools=tools).text for answer in answers]
        for text in texts:
            if not text.startswith(before):
                raise _chats.ambiguous(
                    before,
                    text,
                    cure="Mend what it writes for add_generation_prompt, or the variables on which "
                    "that depends.",
                )
        finish = functools.partial(self._document, len(before), texts, ended=True)
        return _chats.Prepared(texts=texts, finish=finish)

    def _document(
        self, start: int, texts: Sequence[str], encodings: Sequence[Encoding], *, ended: bool
    ) -> Document | None:
        """Returns the document. `ended`: the texts have their bos and eos."""
        arrays: dict[str, np.ndarray] = {}
        for side, text, encoding in zip(_SIDES, texts, encodings, strict=True):
            tokens = encoding.ids
            mask = _chats.cover(encoding.spans, [(start, len(text))], characters=len(text))
            if not ended:
                bos = [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]
                tokens = np.concatenate([bos, tokens, [self.tokenizer.eos_id]]).astype(np.int32)
                mask = np.concatenate([[0] * len(bos), mask, [1]]).astype(np.uint8)
            arrays[side], arrays[f"{side}_mask"] = tokens, mask
        learnt = all(arrays[f"{side}_mask"][1:].any() for side in _SIDES)
        return Document(arrays=arrays) if learnt else None


def _conversations(renderer: _chats.Renderer, record: Record) -> list[list[dict[str, Any]]]:
    """Returns prompt, chosen and rejected of a record, as messages."""
    chosen, rejected = (renderer.messages(record.get(side), field=side) for side in _SIDES)
    silent = {side: _chats.silent(record[side]) for side in _SIDES}
    if isinstance(record.get("prompt"), list):
        prompt = renderer.messages(record["prompt"], field="prompt")
    else:
        shared = [a == b for a, b in zip(chosen, rejected, strict=False)]
        count = ([*shared, False]).index(False)
        if chosen == rejected:
            count -= 1
        prompt, chosen, rejected = chosen[:count], chosen[count:], rejected[count:]
        _check_shared(prompt, chosen, rejected, record.get("prompt"))
    _check_weights(silent, 0 if isinstance(record.get("prompt"), list) else len(prompt))
    if prompt[-1]["role"] == "assistant":
        raise _chats.MalformedError(
            "a prompt must not end with what the assistant said: got prompt[-1] with "
            "role='assistant'. Move that message to chosen and rejected."
        )
    return [prompt, chosen, rejected]


def _check_weights(silent: Mapping[str, set[int]], start: int) -> None:
    """Refuses weight 0 in an answer, from message `start` on: its ids are compared as a whole."""
    for side, numbers in silent.items():
        if within := sorted(i for i in numbers if i >= start):
            raise _chats.MalformedError(
                "an answer of a preference counts as a whole: got weight=0 in "
                f"{side}[{within[0]}]. Leave weight out, or move the message to the prompt."
            )


def _check_shared(
    prompt: Sequence[Mapping[str, Any]],
    chosen: Sequence[Mapping[str, Any]],
    rejected: Sequence[Mapping[str, Any]],
    text: Any,
) -> None:
    if not (prompt and chosen and rejected):
        raise _chats.MalformedError(
            "chosen and rejected must begin with the same messages and then differ: got "
            f"{len(prompt)} in common, then {len(chosen)} and {len(rejected)}. Write the prompt "
            'under "prompt", as messages.'
        )
    if text is not None and all(message.get("content") != text for message in prompt):
        raise _chats.MalformedError(
            "a prompt that is text must be one of the first messages of chosen and rejected: "
            f"got prompt={text!r:.60}. Write the prompt as messages."
        )


def _types(record: Record) -> dict[str, str]:
    return {field: type(record.get(field)).__name__ for field in ("prompt", *_SIDES)}
