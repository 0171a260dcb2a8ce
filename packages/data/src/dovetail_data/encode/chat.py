# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conversations for supervised fine-tuning: ids, and a mask of the trained ones.

The conversation is rendered and encoded as one text, as apply_chat_template of transformers does.
Ids that span the end of the template's text and the beginning of a message's are then the same. The
mask is decided by characters: an id counts if all of its characters do.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dovetail_data._arguments import require_name
from dovetail_data.encode import _chats
from dovetail_data.encode._turns import Turns
from dovetail_data.encode.encoder import Document
from dovetail_data.record import Field, ids
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.template import Template
from dovetail_data.tokenizer import ChatTokenizer, Encoding

TrainOn = Literal["assistant", "last", "all"]


class Chat:
    """Encodes conversations: `tokens`, and `mask` with 1 for the ids that are trained as targets.

    Nothing is added to the template's text. It alone writes bos; if it writes no end of turn, or
    writes it outside its {% generation %} blocks, the model does not learn to stop. Nothing is cut.
    A message with the text of a special token is corrupt, and so is a conversation with an
    ambiguous rendering. A conversation without trained ids is dropped.

    Args:
        tokenizer: `Pretrained`, `Bytes` or another `ChatTokenizer`.
        template: The chat template.
        train_on: "assistant" trains on the output of the template's {% generation %} blocks.
            Without blocks, it trains on everything that each assistant message adds to the
            generation prompt before it, with the end of its turn. If the template renders earlier
            messages otherwise when others follow (Qwen3, Phi-3, Mistral), blocks are added to its
            loop over the messages; the text stays the same. "last" trains on the last assistant
            message alone, "all" on every id but the first.
        field: Name of the field with the list of messages.
        tools_field: Name of the field with the tools on offer, a list or its JSON. None ignores
            tools.

    Raises:
        TypeError: The tokenizer has no `encode_with_specials` or `find_special`, or `template` is
            not a `Template`, such as a path.
        ValueError: `train_on` is unknown.

    Example:

        >>> from dovetail_data import Bytes
        >>> source = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
        >>> chat = Chat(Bytes(), template=Template(source, eos="<|eos|>"))
        >>> messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
        >>> chat([{"messages": messages}])[0].arrays["mask"]
        array([0, 0, 0, 0, 0, 1, 1], dtype=uint8)
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
        require_name("field", field, "messages")
        if tools_field is not None:
            require_name("tools_field", tools_field, "tools")
        self.train_on, self.field, self.tools_field = train_on, field, tools_field
        self.renderer = _chats.Renderer(self.tokenizer, template)
        self.turns = Turns(template)
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
            spoken = [i for i, said in enumerate(messages) if said["role"] == "assistant"]
            learnt = spoken[-1:] if self.train_on == "last" else spoken
            blocks = self.renderer.template.generation
            spans = (
                self._blocks(messages, tools, learnt, whole.spans)
                if blocks
                else self._spoken(messages, tools, learnt, whole.text)
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
        """Returns the spans of the template's blocks; with "last", those of the last message."""
        if self.train_on != "last" or not learnt or learnt[0] == 0:
            return spans
        return spans[len(self.renderer.text(messages[: learnt[0]], tools=tools).spans) :]

    def _spoken(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        learnt: Sequence[int],
        whole: str,
    ) -> Sequence[tuple[int, int]]:
        """Returns the spans of the messages `learnt`, for a template without blocks."""
        try:
            return [self._added(messages, tools, i, whole) for i in learnt]
        except _chats.AmbiguousError:
            turns = self.turns.spoken(messages, tools=tools)
            if turns is None:
                raise
            return turns[-1:] if self.train_on == "last" else turns

    def _added(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, i: int, whole: str
    ) -> tuple[int, int]:
        """Returns the characters of `whole` that message i adds to the generation prompt."""
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
    """Returns the document, or None if no id is a target. The first never is one."""
    return Document(arrays={"tokens": tokens, "mask": mask}) if mask[1:].any() else None
