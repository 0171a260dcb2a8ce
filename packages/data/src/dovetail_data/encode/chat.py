# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conversations for supervised fine-tuning: ids, and a mask of the trained ones.

The conversation is rendered and encoded as one text, as apply_chat_template of transformers does.
Ids that span the end of the template's text and the beginning of a message's are then the same. The
mask is decided by characters: an id counts if all of its characters do.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_name
from dovetail_data.encode import _chats
from dovetail_data.encode._turns import Turns
from dovetail_data.encode.encoder import Document
from dovetail_data.record import Field, ids
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizing.template import Rendered, Template
from dovetail_data.tokenizing.tokenizer import ChatTokenizer, Encoding

TrainOn = Literal["assistant", "last", "all"]


@_elsewhere.text
class Chat:
    """Encodes conversations: `tokens`, and `mask` with 1 for the ids that are trained as targets.

    Nothing is added to the template's text. It alone writes bos; if it writes no end of turn, or
    writes it outside its {% generation %} blocks, the model does not learn to stop. Nothing is cut.
    A message of the assistant with "weight": 0 is not trained. A key with null counts as absent.
    A message with the text of a special token is corrupt, and so are one with a key that the
    template does not read, and a conversation with an ambiguous rendering. A conversation without
    trained ids is dropped.

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
        ignore_keys: Keys of messages to leave out, though the template does not read them.

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
        ignore_keys: Sequence[str] = (),
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
        self.renderer = _chats.Renderer(self.tokenizer, template, ignore_keys=ignore_keys)
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
            **_chats.ignored(ignore_keys),
        }
        self.fingerprint: str = _chats.digest(self.manifest)

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        return _chats.encode_each(records, self._prepare, self.tokenizer.encode_with_specials)

    def _prepare(self, record: Record) -> _chats.Prepared:
        messages = self.renderer.messages(record.get(self.field), field=self.field)
        tools = self.renderer.tools(record, self.tools_field)
        whole = self.renderer.text(messages, tools=tools)
        spoken = [i for i, said in enumerate(messages) if said["role"] == "assistant"]
        silent = _chats.silent(record[self.field])
        talk = _Talk(messages, tools, whole)
        if self.train_on == "all":
            _check_spoken(silent - set(spoken), self.field)
            left_out = self._spans(talk, sorted(silent))
            return _chats.Prepared(
                texts=[whole.text],
                finish=functools.partial(_document_of_all, left_out, len(whole.text)),
            )
        wanted = spoken[-1:] if self.train_on == "last" else spoken
        learnt = [i for i in wanted if i not in silent]
        spans = whole.spans
        if not self.renderer.template.generation or learnt != spoken:
            spans = self._spans(talk, learnt)
        finish = functools.partial(_document, spans, len(whole.text))
        return _chats.Prepared(texts=[whole.text], finish=finish)

    def _spans(self, talk: "_Talk", learnt: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Returns the spans of the text that the messages `learnt` of the assistant wrote."""
        if not learnt:
            return []
        if self.renderer.template.generation:
            return self._blocks(talk, learnt)
        return self._spoken(talk, learnt)

    def _blocks(self, talk: "_Talk", learnt: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Returns the spans of the blocks that messages wrote."""
        messages, tools, spans = talk.messages, talk.tools, talk.whole.spans
        template, roles = self.renderer.template, [said["role"] for said in messages]
        try:
            turns = template.render_turns(messages, tools=tools).spans
        except ValueError:  # a filter of the template changes the blocks
            turns = ()
        if len(turns) == roles.count("assistant"):
            within = [turns[roles[:i].count("assistant")] for i in learnt]
            return [span for a, b in within for span in spans if a <= span[0] and span[1] <= b]
        prompts = [
            (i, self.renderer.text(messages[:i], tools=tools))
            for i in sorted({n for i in learnt for n in (i, i + 1)} - {0, len(messages)})
        ]
        before = {0: 0, len(messages): len(spans)}
        for i, prompt in prompts:
            before[i] = len(prompt.spans)
            if prompt.spans != tuple(spans[: before[i]]):
                raise _chats.AmbiguousError(
                    "ambiguous template: it must write the blocks of the first messages as it does "
                    f"among all: got other blocks for the first {i} of {len(messages)}. Write the "
                    "messages in one loop, or leave out weight and train_on."
                )
        return [span for i in learnt for span in spans[before[i] : before[i + 1]]]

    def _spoken(self, talk: "_Talk", learnt: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Returns the spans of the messages `learnt`, for a template without blocks."""
        try:
            return [self._added(talk, i) for i in learnt]
        except _chats.AmbiguousError:
            turns = self.turns.spoken(talk.messages, tools=talk.tools)
            if turns is None:
                raise
            spoken = [i for i, said in enumerate(talk.messages) if said["role"] == "assistant"]
            return [turns[spoken.index(i)] for i in learnt]

    def _added(self, talk: "_Talk", i: int) -> tuple[int, int]:
        """Returns the characters of the text that message i adds to the generation prompt."""
        messages, tools, whole = talk.messages, talk.tools, talk.whole.text
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


class _Talk(NamedTuple):
    """A conversation and its rendering."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    whole: Rendered


def _document(
    trained: Sequence[tuple[int, int]], characters: int, encodings: Sequence[Encoding]
) -> Document | None:
    (encoding,) = encodings
    mask = _chats.cover(encoding.spans, trained, characters=characters)
    return _learnt(encoding.ids, mask)


def _document_of_all(
    left_out: Sequence[tuple[int, int]], characters: int, encodings: Sequence[Encoding]
) -> Document | None:
    (encoding,) = encodings
    mask = 1 - _chats.cover(encoding.spans, left_out, characters=characters)
    mask[:1] = 0
    return _learnt(encoding.ids, mask)


def _check_spoken(silent: set[int], field: str) -> None:
    """Refuses weight 0 of other messages, whose text has no place of its own in the template's."""
    if silent:
        raise _chats.MalformedError(
            'a message with weight 0 must be the assistant\'s with train_on="all": got weight=0 in '
            f'{field}[{min(silent)}]. Leave weight out there, or pass train_on="assistant".'
        )


def _learnt(tokens: np.ndarray, mask: np.ndarray) -> Document | None:
    """Returns the document, or None if no id is a target. The first never is one."""
    return Document(arrays={"tokens": tokens, "mask": mask}) if mask[1:].any() else None
