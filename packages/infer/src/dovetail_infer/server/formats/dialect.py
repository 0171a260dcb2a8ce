# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Dialect`: the forms in which a model writes reasoning and calls of tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from types import ModuleType

from dovetail_infer.server.formats import deepseek, gpt_oss, hermes, llama3, mistral, think
from dovetail_infer.server.formats.source import Source, Steps
from dovetail_infer.server.formats.turn import Turn
from dovetail_infer.types import NamingTokenizer, Tokenizer

CHANNELS = "gpt-oss"
_GRAMMARS: dict[str, ModuleType] = {
    "hermes": hermes,
    "llama3": llama3,
    "mistral": mistral,
    "deepseek": deepseek,
    CHANNELS: gpt_oss,
}
TOOLS = tuple(_GRAMMARS)
REASONING = (*think.MARKS, CHANNELS)
_TAIL = 16  # ids at the end of a prompt that hold the opening mark of its reasoning


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """The forms in which a model writes reasoning and calls of tools.

    What is read is sent: the arguments of a call are the model's own text, perhaps no JSON. A call
    begins with its name and the first character of its arguments. What comes before that and is
    none is content, marks included. White space beside marks is left out.

    Attributes:
        tools: Format of calls: "hermes" (Qwen too), "llama3", "mistral", "deepseek" or "gpt-oss".
            None: requests with tools are refused.
        reasoning: Format of reasoning: "think", "mistral" or "gpt-oss". None: it is content.
        specials: Names of the tokenizer's special tokens, which are no part of a text.

    Raises:
        ValueError: A format is unknown, or the channels of gpt-oss are to be read by another one.

    Example:

        >>> from dovetail_infer.server import Dialect
        >>> turn = Dialect(reasoning="think").turn(tools=())
        >>> turn.read("<think>1 + 1</think>2", last=True)
        {'reasoning_content': '1 + 1', 'reasoning': '1 + 1', 'content': '2'}
    """

    tools: str | None = None
    reasoning: str | None = None
    specials: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, known in {"tools": TOOLS, "reasoning": REASONING}.items():
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, or None, got {name}={value!r}. Use "
                    f"{name}={known[0]!r}."
                )
        both = {self.tools, self.reasoning}
        if CHANNELS in both and len(both - {None}) > 1:
            raise ValueError(
                f"tools and reasoning must both be {CHANNELS!r}, or one None, got tools="
                f"{self.tools!r} and reasoning={self.reasoning!r}. Use {CHANNELS!r} for both."
            )

    def turn(
        self, tools: Collection[str], *, opened: bool = False, shows_specials: bool = False
    ) -> Turn | None:
        """Returns a reader of one answer. None: there is nothing to tell from content.

        Args:
            tools: Names of the tools on offer. (): what looks like a call is content.
            opened: The prompt ends with the beginning of reasoning.
            shows_specials: Keep special tokens in the content.
        """
        names = tools if self.tools else ()
        channels = CHANNELS in (self.tools, self.reasoning)
        if not (names or self.reasoning or channels):
            return None
        marks = {*think.MARKS.get(self.reasoning or "", ())}
        if channels or names:
            marks.update(_GRAMMARS[CHANNELS if channels else self.tools or ""].MARKS)
        hidden = () if shows_specials else tuple(sorted(set(self.specials) - marks))
        source = Source(hidden)
        if channels:
            steps = gpt_oss.grammar(source, names, thinks=self.reasoning is not None)
        else:
            steps = self._steps(source, names, opened)
        return Turn(source, steps, short_ids=self.tools == "mistral")

    def _steps(self, source: Source, names: Collection[str], opened: bool) -> Steps[None]:
        if self.reasoning:
            yield from think.grammar(source, think.MARKS[self.reasoning], opened=opened)
        if self.tools and names:
            yield from _GRAMMARS[self.tools].grammar(source, names)
        else:
            yield from source.until("content")

    def opened(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
        """Returns whether a prompt ends with the opening mark of reasoning.

        Args:
            tokenizer: The model's.
            prompt: Its ids.
        """
        marks = think.MARKS.get(self.reasoning or "")
        if marks is None:
            return False
        named = isinstance(tokenizer, NamingTokenizer)
        decode = tokenizer.decode_with_specials if named else tokenizer.decode
        return decode(prompt[-_TAIL:]).rstrip().endswith(marks[0])
