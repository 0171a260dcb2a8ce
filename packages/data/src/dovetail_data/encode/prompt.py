# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts for sampling from a model."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_name
from dovetail_data.encode import _chats
from dovetail_data.encode.encoder import Document
from dovetail_data.record import Field, ids
from dovetail_data.sources.source import Corrupt, Record
from dovetail_data.tokenizing.template import Template
from dovetail_data.tokenizing.tokenizer import Encoding, Tokenizer


@_elsewhere.text
class Prompt(_chats.Templated):
    """Encodes prompts: `tokens`, and `extra` with the record's other fields.

    Without a template the prompt is a string: bos (if the tokenizer has one) and its ids. With one
    it is a list of messages, rendered with the generation prompt; nothing is added to that. `extra`
    is JSON in UTF-8, one byte per element, names sorted: `json.loads(extra.tobytes())` restores the
    fields, tools included. A prompt without an id is dropped.

    Args:
        tokenizer: With a template it must be a `ChatTokenizer`.
        template: The chat template. None for prompts that are strings.
        field: Name of the field with the prompt.
        tools_field: Name of the field with the tools on offer, a list or its JSON. None ignores
            tools.
        ignore_keys: Keys of messages to leave out, though the template does not read them.

    Raises:
        TypeError: The tokenizer cannot read the output of templates.

    Example:

        >>> from dovetail_data import Bytes
        >>> document = Prompt(Bytes())([{"prompt": "2+2?", "answer": 4}])[0]
        >>> document.arrays["tokens"], document.arrays["extra"].tobytes()
        (array([256,  50,  43,  50,  63], dtype=int32), b'{"answer":4}')
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: Template | None = None,
        field: str = "prompt",
        tools_field: str | None = "tools",
        ignore_keys: Sequence[str] = (),
    ) -> None:
        super().__init__(tokenizer, template, tools_field=tools_field, ignore_keys=ignore_keys)
        require_name("field", field, "prompt")
        self.field = field
        self.layout: Mapping[str, Field] = {
            "tokens": ids(tokenizer.vocab_size),
            "extra": Field(dtype="|u1"),
        }
        self.manifest: Mapping[str, Any] = {
            "encoder": "prompt",
            "tokenizer": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "template": None if template is None else template.fingerprint,
            "field": field,
            "tools_field": tools_field,
            **_chats.ignored(ignore_keys),
        }
        self.fingerprint: str = _chats.digest(self.manifest)

    def __call__(self, records: Sequence[Record]) -> list[Document | Corrupt | None]:
        return self.encoded(records)

    def _prepare_text(self, record: Record) -> _chats.Prepared:
        text = record.get(self.field)
        if not isinstance(text, str):
            raise _chats.MalformedError(
                f"a prompt without a template must be a string: got {self.field} of type "
                f"{type(text).__name__} in a record with {sorted(record)}. Pass field= its name, "
                "or template= for messages."
            )
        bos = [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]
        return _chats.Prepared(
            texts=[text], finish=functools.partial(_document, bos, self._extra(record))
        )

    def _prepare_chat(self, renderer: _chats.Renderer, record: Record) -> _chats.Prepared:
        messages = renderer.messages(record.get(self.field), field=self.field)
        if messages[-1]["role"] == "assistant":
            raise _chats.MalformedError(
                "a prompt must not end with what the assistant said: got "
                f"{self.field}[-1] with role='assistant'. Leave that message out."
            )
        tools = renderer.tools(record, self.tools_field)
        text = renderer.text(messages, tools=tools, add_generation_prompt=True).text
        return _chats.Prepared(
            texts=[text], finish=functools.partial(_document, [], self._extra(record))
        )

    def _extra(self, record: Record) -> bytes:
        fields = {name: value for name, value in record.items() if name != self.field}
        try:
            text = json.dumps(
                fields,
                sort_keys=True,
                separators=(",", ":"),
                ensure_ascii=False,
                allow_nan=False,
            )
            return text.encode("utf-8")
        except (TypeError, ValueError) as error:
            raise _chats.MalformedError(
                f"the fields beside the prompt must be JSON: got {sorted(fields)}: {error}. Leave "
                "such a field out, or write it as a string or a number."
            ) from error


def _document(bos: list[int], extra: bytes, encodings: Sequence[Encoding]) -> Document | None:
    (encoding,) = encodings
    tokens = np.concatenate([np.array(bos, np.int32), encoding.ids])
    arrays = {"tokens": tokens, "extra": np.frombuffer(extra, np.uint8)}
    return Document(arrays=arrays) if len(tokens) else None
