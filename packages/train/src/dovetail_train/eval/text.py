# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text to tokens for evaluation, by the tokenizers of `dovetail_data` and of Hugging Face."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Encoded(Protocol):
    """`ids`: the integers of one text, a list or an array."""

    @property
    def ids(self) -> Any: ...


@runtime_checkable
class Tokenizer(Protocol):
    """The tokenizer interface of evaluation, such as `dovetail_data`'s.

    `encode` adds no special ids. `decode` leaves special ids out.
    """

    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int: ...
    def encode(self, texts: Sequence[str]) -> Sequence[Encoded]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


@runtime_checkable
class HuggingFaceTokenizer(Protocol):
    """The interface of a `transformers` tokenizer, whose `encode` may add special ids."""

    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_id(self) -> int | None: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str: ...


@runtime_checkable
class Sampler(Protocol):
    """Continues prompts of token ids, like an inference engine.

    Args:
        prompts: Token ids of each prompt.
        max_tokens: Largest number of new tokens.
        temperature: Divides the logits; 0 takes the most likely token.
        until: Stop texts. A sampler may go on; the rest is cut off.

    Returns:
        The new ids of each prompt, in order, ending before or at the end-of-text id.
    """

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        until: Sequence[str],
    ) -> Sequence[Sequence[int]]: ...


class TextEncoder:
    """One interface to both kinds of tokenizer.

    Args:
        tokenizer: The tokenizer.
        bos: Begin texts with begin-of-text. Default: as models of that tokenizer were trained. A
            `Tokenizer` with such an id puts it first; one of Hugging Face follows its
            configuration, unless the text already begins with it.

    Attributes:
        prefix: Id before a text without context: begin-of-text, or end-of-text if there is none.
    """

    def __init__(
        self, tokenizer: Tokenizer | HuggingFaceTokenizer, *, bos: bool | None = None
    ) -> None:
        self._tokenizer, self._bos = tokenizer, bos
        if isinstance(tokenizer, Tokenizer):
            first, last = tokenizer.bos_id, tokenizer.eos_id
        elif isinstance(tokenizer, HuggingFaceTokenizer):
            first, last = tokenizer.bos_token_id, tokenizer.eos_token_id
        else:
            raise TypeError(
                f"a tokenizer must have encode, decode and bos_id, eos_id (or bos_token_id, "
                f"eos_token_id), got {type(tokenizer).__name__}; pass one of dovetail_data or "
                f"transformers"
            )
        prefix = last if first is None else first
        if prefix is None or (bos and first is None):
            raise ValueError(
                f"a tokenizer must have the id that begins a text, got begin-of-text={first}, "
                f"end-of-text={last} for bos={bos}; set one of them, or pass bos=False"
            )
        self.prefix: int = prefix
        self.eos: int | None = last

    def encode(self, text: str, *, bos: bool | None = None) -> list[int]:
        """Returns the ids of `text`. `bos` overrides that of the object."""
        bos = self._bos if bos is None else bos
        tokenizer = self._tokenizer
        if isinstance(tokenizer, Tokenizer):
            (encoded,) = tokenizer.encode([text])
            first = tokenizer.bos_id is not None if bos is None else bos
            return [self.prefix] * first + [int(i) for i in encoded.ids]
        if bos is None and text.startswith(tokenizer.decode([self.prefix])):
            bos = False
        if bos is None:
            return list(tokenizer.encode(text))
        ids = list(tokenizer.encode(text, add_special_tokens=False))
        return [self.prefix, *ids] if bos and ids[:1] != [self.prefix] else ids

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """(ids of the context, ids of what follows it), split as lm-evaluation-harness does.

        Spaces at the end of the context go to the continuation, which tokenizers keep with the
        word that follows; both are encoded as one text and cut where the context alone ends. An
        empty context is `prefix`.
        """
        if not context:
            return [self.prefix], self.encode(continuation, bos=False)
        kept = context.rstrip()
        whole = self.encode(context + continuation)
        before = self.encode(kept)
        return before or [self.prefix], whole[len(before) :]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special ids contribute nothing."""
        if isinstance(self._tokenizer, Tokenizer):
            return self._tokenizer.decode(ids)
        return self._tokenizer.decode(ids, skip_special_tokens=True)
