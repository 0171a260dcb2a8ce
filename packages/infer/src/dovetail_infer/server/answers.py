# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Answers to completions and chat completions: whole, and as the chunks of a stream."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Sequence
from typing import Any

from dovetail_infer.completion import Completion, Tokens
from dovetail_infer.server import logprobs
from dovetail_infer.server.bodies.requests import Request
from dovetail_infer.server.formats.turn import Turn
from dovetail_infer.types import Tokenizer

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one request. `Completions` and `Chats` are its two forms.

    Attributes:
        request: The request.
        prompts: Token ids of each prompt.
        model: The model's name.
        tokenizer: For texts of tokens.
        answer_id: Identifies the answer.
        created: Seconds since 1970.
        offsets: Characters of the tokens sent so far, by choice.
    """

    request: Request
    prompts: Sequence[Sequence[int]]
    model: str
    tokenizer: Tokenizer
    answer_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))
    offsets: dict[int, int] = dataclasses.field(default_factory=dict)

    def whole(self, completions: Sequence[Completion]) -> Json:
        """Returns the object of all choices."""
        choices = [self._choice(i, completion) for i, completion in enumerate(completions)]
        return self._object(choices) | {"usage": self.usage(completions)}

    def first(self, index: int) -> Json | None:
        """Returns the chunk before the pieces of a choice, if there is one."""
        raise NotImplementedError

    def chunk(self, index: int, piece: Tokens | Completion) -> Json | None:
        """Returns the chunk of a piece, if it has one. The last of a choice is its completion."""
        raise NotImplementedError

    def last(self, completions: Sequence[Completion]) -> Json | None:
        """Returns the chunk with the counts, if they were asked for."""
        if not self.request.usage:
            return None
        return self._chunk([]) | {"usage": self.usage(completions)}

    def usage(self, completions: Sequence[Completion]) -> Json:
        """Returns the counts of tokens; the prompt of n choices counts once."""
        prompt = sum(map(len, self.prompts))
        drawn = 0 if self.request.max_tokens == 0 else sum(len(c.tokens) for c in completions)
        cached = sum(c.cached_tokens for c in completions[:: self.request.n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": drawn,
            "total_tokens": prompt + drawn,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _choice(self, index: int, completion: Completion) -> Json:
        raise NotImplementedError

    def _object(self, choices: list[Json]) -> Json:
        raise NotImplementedError

    def _chunk(self, choices: list[Json]) -> Json:
        """Returns a chunk; `usage` is null in all but the last, if it was asked for."""
        return self._object(choices) | ({"usage": None} if self.request.usage else {})


class Completions(Answer):
    """The answer to a completion."""

    def first(self, index: int) -> Json | None:
        """Returns the prompt of a choice, with `echo`."""
        if not self.request.echo:
            return None
        return self._chunk([_text_choice(index, self._prompt(index))])

    def chunk(self, index: int, piece: Tokens | Completion) -> Json:
        """Returns the chunk of a piece. The last of a choice is its completion."""
        if isinstance(piece, Completion):
            return self._chunk([_text_choice(index, "", reason=piece.finish_reason)])
        given = self._logprobs(piece, offset=self.offsets.get(index, 0))
        if given is not None:
            self.offsets[index] = self.offsets.get(index, 0) + sum(map(len, given["tokens"]))
        return self._chunk([_text_choice(index, piece.text, given)])

    def _choice(self, index: int, completion: Completion) -> Json:
        request = self.request
        text, reason, before = completion.text, completion.finish_reason, []
        if request.max_tokens == 0:
            text, reason = "", "length"
        if request.echo and request.logprobs is not None:
            before = logprobs.prompt_steps(completion, self.prompts[index // request.n])
        if request.echo:
            text = self._prompt(index) + text
        given = self._logprobs(completion, before)
        return _text_choice(index, text, given, reason=reason)

    def _logprobs(
        self, piece: Tokens | Completion, before: Sequence[logprobs.Step] = (), *, offset: int = 0
    ) -> Json | None:
        if (wanted := self.request.logprobs) is None:
            return None
        drawn = [] if self.request.max_tokens == 0 else logprobs.steps(piece)
        steps = [*before, *drawn]
        return logprobs.of_completion(steps, self.tokenizer, wanted=wanted, offset=offset)

    def _prompt(self, index: int) -> str:
        i = index // self.request.n
        given = self.request.prompts[i]
        return given if isinstance(given, str) else self.tokenizer.decode(self.prompts[i])

    def _object(self, choices: list[Json]) -> Json:
        return {
            "id": f"cmpl-{self.answer_id}",
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chats(Answer):
    """The answer to a chat completion.

    Attributes:
        turns: Readers of its choices. None: all text is content.
    """

    turns: Sequence[Turn] | None = None

    def first(self, index: int) -> Json | None:
        """Returns the role."""
        return self._chunk([_delta(index, {"role": "assistant", "content": ""})])

    def chunk(self, index: int, piece: Tokens | Completion) -> Json | None:
        """Returns the chunk of a piece. The last of a choice is its completion.

        Log-probabilities are of all tokens, those of marks too. They come with the piece, though a
        beginning of a mark is held back.
        """
        if isinstance(piece, Completion):
            delta = self._read(index, "", last=True)
            return self._chunk([_delta(index, delta, reason=self._reason(index, piece))])
        delta, given = self._read(index, piece.text), self._logprobs(piece)
        return self._chunk([_delta(index, delta, given)]) if delta or given else None

    def _choice(self, index: int, completion: Completion) -> Json:
        delta = self._read(index, completion.text, last=True)
        calls = delta.pop("tool_calls", [])
        for call in calls:
            del call["index"]
        content = delta.pop("content", None if calls else "")
        message = {"role": "assistant", "content": content, "refusal": None, **delta}
        return {
            "index": index,
            "message": {**message, **({"tool_calls": calls} if calls else {})},
            "logprobs": self._logprobs(completion),
            "finish_reason": self._reason(index, completion),
        }

    def _read(self, index: int, text: str, *, last: bool = False) -> Json:
        if self.turns is None:
            return {"content": text} if text or not last else {}
        return self.turns[index].read(text, last=last)

    def _reason(self, index: int, completion: Completion) -> str:
        """Returns "tool_calls" for an answer with calls that was not cut."""
        called = self.turns is not None and self.turns[index].calls
        return (
            "tool_calls"
            if called and completion.finish_reason == "stop"
            else completion.finish_reason
        )

    def _logprobs(self, piece: Tokens | Completion) -> Json | None:
        if self.request.logprobs is None:
            return None
        return logprobs.of_chat(logprobs.steps(piece), self.tokenizer)

    def _object(self, choices: list[Json]) -> Json:
        return {
            "id": f"chatcmpl-{self.answer_id}",
            "object": "chat.completion.chunk" if self.request.stream else "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _text_choice(
    index: int, text: str, given: Json | None = None, *, reason: str | None = None
) -> Json:
    return {"index": index, "text": text, "logprobs": given, "finish_reason": reason}


def _delta(
    index: int, delta: Json, given: Json | None = None, *, reason: str | None = None
) -> Json:
    return {"index": index, "delta": delta, "logprobs": given, "finish_reason": reason}
