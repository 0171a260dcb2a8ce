# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conversations for supervised fine-tuning: ids, and which of them are learnt.

The conversation is rendered and encoded as one text, as apply_chat_template of transformers does,
so that ids that join the end of the template's text to the beginning of a message's are the same.
What is learnt is a matter of characters: an id counts if all of its characters do.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dovetail_data.encode import _chats
from dovetail_data.encode.encoder import Document
from dovetail_data.record import Field, ids
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.template import Template
from dovetail_data.tokenizer import ChatTokenizer, Encoding

TrainOn = Literal["assistant", "last", "all"]


class Chat:
    """`tokens` and `mask` (1: learnt as a target) of the list of messages under `field`.

    train_on: "assistant" learns what the template's {% generation %} blocks write; of a template
    without blocks, what each assistant message adds to the generation prompt before it, the end of
    its turn included, and ValueError if the template writes earlier messages otherwise once others
    follow. "last" learns the last assistant message alone, "all" every id but the first.
    tools_field: where a record keeps the tools that it offers, as a list or its JSON.

        Chat(tokenizer, template=Template.load("model"))

    Nothing is added to what the template writes: it alone writes bos, and where it writes no end
    of turn, or writes it outside its blocks, the model does not learn to stop. Nothing is cut. A
    message that holds the text of a special token is Corrupt. A conversation of which nothing would
    be learnt is dropped.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        template: Template,
        train_on: TrainOn = "assistant",
        field: str = "messages",
        tools_field: str | None = "tools",
    ) -> None:
        if train_on not in ("assistant", "last", "all"):
            raise ValueError(
                'train_on must be "assistant", "last" or "all": got '
                f"train_on={train_on!r}. Pass one of them."
            )
        self.tokenizer = _chats.reader(tokenizer)
        self.train_on, self.field, self.tools_field = train_on, field, tools_field
        self.renderer = _chats.Renderer(self.tokenizer, template)
        self.layout: Mapping[str, Field] = {
            "tokens": ids(tokenizer.vocab_size),
            "mask": Field(dtype="|u1"),
        }
        self.manifest: Mapping[str, Any] = {
            "encoder": "chat",
            "tokenizer": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "template": template.fingerprint,
            "train_on": train_on,
            "field": field,
            "tools_field": tools_field,
        }
        self.fingerprint: str = _chats.digest(self.manifest)

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        return _chats.encode_each(records, self._prepare, self.tokenizer.encode_with_specials)

    def _prepare(self, record: Record) -> _chats.Prepared:
        messages = self.renderer.messages(record.get(self.field), field=self.field)
        tools = self.renderer.tools(record, self.tools_field)
        whole = self.renderer.text(messages, tools=tools)
        if self.train_on == "all":
            finish = _document_of_all
        else:
            spoken = [i for i, one in enumerate(messages) if one["role"] == "assistant"]
            learnt = spoken[-1:] if self.train_on == "last" else spoken
            blocks = self.renderer.template.generation
            spans = (
                self._blocks(messages, tools, learnt, whole.spans)
                if blocks
                else [self._added(messages, tools, i, whole.text) for i in learnt]
            )
            finish = functools.partial(_document, spans, len(whole.text))
        return _chats.Prepared(texts=[whole.text], finish=finish)

    def _blocks(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        learnt: Sequence[int],
        spans: Sequence[tuple[int, int]],
    ) -> Sequence[tuple[int, int]]:
        """The template's blocks; of the last message, those that the ones before it lack."""
        if self.train_on != "last" or not learnt or learnt[0] == 0:
            return spans
        return spans[len(self.renderer.text(messages[: learnt[0]], tools=tools).spans) :]

    def _added(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, i: int, whole: str
    ) -> tuple[int, int]:
        """What message i adds to the generation prompt, as characters of `whole`."""
        prompt = self.renderer.text(messages[:i], tools=tools, add_generation_prompt=True).text
        said = self.renderer.text(messages[: i + 1], tools=tools).text
        for prefix, longer in ((prompt, said), (said, whole)):
            if not longer.startswith(prefix):
                raise _chats.ambiguous(
                    prefix,
                    longer,
                    cure="Add {% generation %} blocks around what the assistant says, or pass "
                    'train_on="all".',
                )
        return len(prompt), len(said)


def _document(
    trained: Sequence[tuple[int, int]], characters: int, encodings: Sequence[Encoding]
) -> Document | None:
    (encoding,) = encodings
    mask = _chats.cover(encoding.spans, trained, characters=characters)
    return _learnt(encoding.ids, mask)


def _document_of_all(encodings: Sequence[Encoding]) -> Document | None:
    (encoding,) = encodings
    return _learnt(encoding.ids, (np.arange(len(encoding.ids)) > 0).astype(np.uint8))


def _learnt(tokens: np.ndarray, mask: np.ndarray) -> Document | None:
    """None where no id is a target: the first never is one."""
    return Document(arrays={"tokens": tokens, "mask": mask}) if mask[1:].any() else None
