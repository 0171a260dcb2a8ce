# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the encoders of chats: checks of messages, rendering, and masks by characters."""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from dovetail_data._arguments import require_name
from dovetail_data.encode.encoder import Document, require_records
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizing.message_keys import unread, without_nulls
from dovetail_data.tokenizing.template import Rendered, Template
from dovetail_data.tokenizing.tokenizer import ChatTokenizer, Encoding, Tokenizer, require_tokenizer

WEIGHT = "weight"  # of a message in OpenAI's format for tuning: 0 or 1


class MalformedError(ValueError):
    """The record cannot be encoded with these settings. It becomes a `Corrupt`."""


class AmbiguousError(MalformedError):
    """The renderings of a conversation do not extend each other."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """The texts of a record, and the function that makes a document of their encodings."""

    texts: Sequence[str]
    finish: Callable[[Sequence[Encoding]], Document | None]


def encode_each(
    records: Sequence[Record],
    prepare: Callable[[Record], Prepared | None],
    encode: Callable[[Sequence[str]], list[Encoding]],
) -> list[Document | Corrupt | None]:
    """Encodes records, the texts of all in one call.

    Args:
        records: The records.
        prepare: Returns the texts of a record, or None to drop it.
        encode: Encodes texts.

    Returns:
        One result per record.
    """
    require_records(records)
    prepared = [_attempt(prepare, record) for record in records]
    sound = [result for result in prepared if isinstance(result, Prepared)]
    encodings = iter(encode([text for result in sound for text in result.texts]))
    return [
        result.finish([next(encodings) for _ in result.texts])
        if isinstance(result, Prepared)
        else result
        for result in prepared
    ]


def _attempt(
    prepare: Callable[[Record], Prepared | None], record: Record
) -> Prepared | Corrupt | None:
    try:
        prepared = prepare(record)
        for text in prepared.texts if prepared else ():
            text.encode("utf-8")
    except MalformedError as error:
        return Corrupt(str(error))
    except UnicodeEncodeError as error:
        return Corrupt(
            f"text must be Unicode without lone surrogates: got {error.object[error.start]!r} "
            "in the record. Mend or delete it."
        )
    return prepared


class Renderer:
    """A template applied to records. A fault of the record is a MalformedError.

    Args:
        tokenizer: Finds special tokens.
        template: The chat template.
        ignore_keys: Keys of messages to leave out, though the template does not read them.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, template: Template, *, ignore_keys: Sequence[str] = ()
    ) -> None:
        if not isinstance(template, Template):
            raise TypeError(
                f"template must be a Template: got template={template!r:.200} of type "
                f"{type(template).__name__}. Pass Template.load(path) with a model's directory."
            )
        self.tokenizer = tokenizer
        self.template = template
        self._ignored = (WEIGHT, *check_ignored(ignore_keys))

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool = False,
    ) -> Rendered:
        for i, message in enumerate(messages):
            self._check_read(message, f"message {i} of {len(messages)}")
        try:
            return self.template.render(
                messages, tools=tools, add_generation_prompt=add_generation_prompt
            )
        except ValueError as error:
            raise MalformedError(str(error)) from error

    def messages(self, value: Any, *, field: str) -> list[dict[str, Any]]:
        """Returns the messages under `field`, checked, with contents as the template wants them.

        They have no nulls, no weights and none of the ignored keys.
        """
        if not isinstance(value, list) or not value:
            raise MalformedError(
                f"a chat must be a list of messages: got {field}={_short(value)}. Write "
                f'"{field}": [{{"role": "user", "content": ..}}, ..].'
            )
        return [self._message(message, f"{field}[{i}]") for i, message in enumerate(value)]

    def tools(self, record: Record, field: str | None) -> list[Any] | None:
        """Returns the record's tools: a list, or its JSON. None without tools."""
        value = None if field is None else record.get(field)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):  # no list either: reported below
                value = json.loads(value)
        if value is not None and not isinstance(value, list):
            raise MalformedError(
                f"tools must be a list of JSON schemas, or its text: got {field}={_short(value)}. "
                "Write a list, or leave the field out."
            )
        self._refuse_specials(value, str(field))
        return without_nulls(value)

    def _message(self, message: Any, where: str) -> dict[str, Any]:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise MalformedError(
                f"a message must be an object with a string as role: got {where}="
                f'{_short(message)}. Write {{"role": "user", "content": ..}}.'
            )
        message = without_nulls(message)
        weight = message.get(WEIGHT, 1)
        if isinstance(weight, bool) or weight not in (0, 1):
            raise MalformedError(
                f"a message's weight must be 0 or 1: got {where} with weight={_short(weight)}. "
                "Write 0 to train on no id of it, or leave weight out."
            )
        message = {key: x for key, x in message.items() if key not in self._ignored}
        if isinstance(message.get("content"), list):
            message["content"] = [self._kept(item) for item in message["content"]]
        content = message.get("content")
        if content is None and not message.get("tool_calls"):
            raise MalformedError(
                f"a message must have content or tool_calls: got {where} with {sorted(message)}. "
                'Write its text under "content", "" if there is none.'
            )
        self._refuse_specials(message, where)
        if content is None:
            return {**message, "content": None}
        if isinstance(content, str):
            if self.template.takes_text or not self.template.takes_parts:
                return message
            return {**message, "content": [{"type": "text", "text": content}]}
        texts = _part_texts(content, where)
        for item in content if isinstance(content, list) else [content]:
            self._check_read(item, f"a part of {where}")
        self._refuse_specials("".join(texts), where)  # a token may be cut between two parts
        return message if self.template.takes_parts else {**message, "content": "".join(texts)}

    def _kept(self, part: Any) -> Any:
        """Returns a part of a content without the ignored keys."""
        if not isinstance(part, dict):
            return part
        return {key: x for key, x in part.items() if key not in self._ignored}

    def _check_read(self, fields: Mapping[str, Any], where: str) -> None:
        if key := unread(fields, self.template.reads):
            raise MalformedError(
                f"each key of a message must be read by the template: got {key!r} in {where}, "
                f"which it does not name. Take it out of the records, or pass "
                f"ignore_keys=[{key!r}]."
            )

    def _refuse_specials(self, value: Any, where: str) -> None:
        """Refuses special tokens: a message must not forge the message of another role."""
        for text in _strings(value):
            if special := self.tokenizer.find_special(text):
                raise MalformedError(
                    f"a message must not hold the text of a special token: got {special!r} in "
                    f"{where}. Take it out: it would become the token, which only the template "
                    "may write."
                )


class Templated:
    """An encoder of strings, or with a template of messages.

    Args:
        tokenizer: With a template it must be a `ChatTokenizer`.
        template: The chat template, or None.
        tools_field: Name of the field with the tools, or None.
        ignore_keys: As for `Renderer`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template | None,
        *,
        tools_field: str | None,
        ignore_keys: Sequence[str],
    ) -> None:
        require_tokenizer(tokenizer)
        if tools_field is not None:
            require_name("tools_field", tools_field, "tools")
        self.tokenizer, self.tools_field = tokenizer, tools_field
        self.renderer: Renderer | None = None
        if template is not None:
            self.renderer = Renderer(reader(tokenizer), template, ignore_keys=ignore_keys)

    def encoded(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        """Returns the documents of the records, by one of the two ways to prepare them."""
        if self.renderer is None:
            return encode_each(records, self._prepare_text, self.tokenizer.encode)
        prepare = functools.partial(self._prepare_chat, self.renderer)
        return encode_each(records, prepare, reader(self.tokenizer).encode_with_specials)

    def _prepare_text(self, record: Record) -> Prepared | None:
        raise NotImplementedError

    def _prepare_chat(self, renderer: Renderer, record: Record) -> Prepared | None:
        raise NotImplementedError


def silent(messages: Sequence[Mapping[str, Any]]) -> set[int]:
    """Returns the numbers of the messages with weight 0, which are not trained."""
    return {i for i, message in enumerate(messages) if message.get(WEIGHT) == 0}


def check_ignored(keys: Sequence[str]) -> tuple[str, ...]:
    """Returns the keys to ignore; TypeError for a string, ValueError for a key that is read."""
    if isinstance(keys, str):
        raise TypeError(
            f"ignore_keys must be a sequence of keys: got ignore_keys={keys!r}. Pass [{keys!r}]."
        )
    if read := sorted({"role", "content", WEIGHT}.intersection(keys)):
        raise ValueError(
            f"ignore_keys must be keys that no training reads: got {read[0]!r}. Leave it out, and "
            "take it out of the records."
        )
    return tuple(keys)


def ignored(keys: Sequence[str]) -> dict[str, list[str]]:
    """Returns the entry of a manifest; none without keys, for the fingerprints of old corpora."""
    return {"ignore_keys": sorted(keys)} if keys else {}


def reader(tokenizer: Tokenizer) -> ChatTokenizer:
    """Returns `tokenizer`; TypeError unless it can read the output of templates."""
    require_tokenizer(tokenizer)
    if not isinstance(tokenizer, ChatTokenizer):
        raise TypeError(
            "a tokenizer must have encode_with_specials and find_special to read the output of a "
            f"template: got {type(tokenizer).__name__}. Use Pretrained or Bytes, or add those two."
        )
    return tokenizer


def digest(manifest: Mapping[str, Any]) -> str:
    """Returns the sha256 of a manifest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def cover(
    spans: Int32[np.ndarray, "n 2"], trained: Sequence[tuple[int, int]], *, characters: int
) -> UInt8[np.ndarray, "n"]:
    """Returns a mask u8[n]: 1 for each id with all of its characters in a trained span.

    An id without a character counts if its place is trained.

    Args:
        spans: [start, stop) in characters of each id, i32[n, 2].
        trained: [start, stop) of the trained pieces of the text.
        characters: Length of the text.
    """
    inside = np.zeros(characters + 1, np.int64)
    for start, stop in trained:
        inside[start:stop] = 1
    before = np.concatenate([[0], np.cumsum(inside)])
    start = spans[:, 0]
    stop = np.maximum(spans[:, 1], start + 1)
    return (before[stop] - before[start] == stop - start).astype(np.uint8)


def ambiguous(prefix: str, whole: str, *, cure: str) -> AmbiguousError:
    """Returns the error for renderings of a conversation that do not extend each other.

    Args:
        prefix: The rendering of the first messages.
        whole: The rendering of all messages.
        cure: Advice for the message.
    """
    pairs = zip(prefix, whole, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(prefix), len(whole)))
    return AmbiguousError(
        "ambiguous template: it must render the first messages as it begins to render all: got "
        f"{prefix[at : at + 20]!r} alone and {whole[at : at + 20]!r} among all, at character {at}. "
        f"{cure}"
    )


def _part_texts(content: Any, where: str) -> list[str]:
    parts = content if isinstance(content, list) else [content]
    if not all(map(_is_text, parts)):
        raise MalformedError(
            f"a content must be a string or a list of text parts: got {_short(content)} in "
            f'{where}. Write parts as {{"type": "text", "text": ..}}.'
        )
    return [text_part["text"] for text_part in parts]


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _strings(value: Any) -> Iterator[str]:
    """Yields every string in a JSON value, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
