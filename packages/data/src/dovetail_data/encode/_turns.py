# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trained characters of a conversation, for a template without {% generation %} blocks.

The templates of Qwen3, Phi-3 and Mistral render a message otherwise when others follow: they drop
reasoning, move the system message, or end the text with another token. A rendering of the first
messages is then no prefix of the whole. Instead, blocks are added to the template, one around each
round of its loop over the messages. The block of an assistant's message begins with its heading, as
the generation prompt does; the heading is not trained.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail_data.tokenizing.template import Template

Spans = list[tuple[int, int]]

_ANSWERS = ("Quartz", "Xylem")  # with no letter in common, so that a heading ends before them


class Turns:
    """The turns of the assistant in the output of a template.

    Args:
        template: The template, with or without {% generation %} blocks.
    """

    def __init__(self, template: Template) -> None:
        self._template = template

    def spoken(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None
    ) -> Spans | None:
        """Returns the trained span of each message of the assistant, in order.

        A span begins behind the heading of the message and ends with its turn. The last message of
        a conversation ends with the text.

        Args:
            messages: The conversation.
            tools: The tools on offer.

        Returns:
            The spans in characters of the text. None if the template has no loop with one message
            in each round, or a turn does not begin with a known heading.
        """
        if self._headings is None:
            return None
        try:
            text, turns = self._turns(messages, tools)
        except ValueError:  # a filter of the template changes the blocks
            return None
        spans: Spans = []
        for start, stop in turns:
            fitting = [len(h) for h in self._headings if text.startswith(h, start, stop)]
            if not fitting:
                return None
            spans.append((start + max(fitting), stop))
        return spans if len(spans) == _count(messages) else None

    def _turns(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
    ) -> tuple[str, Spans]:
        """Returns the text and the turns in it, headings included."""
        rendered = self._template.render_turns(messages, tools=tools)
        turns = list(rendered.spans)
        if turns and messages[-1]["role"] == "assistant":
            turns[-1] = (turns[-1][0], len(rendered.text))
        return rendered.text, turns

    @functools.cached_property
    def _headings(self) -> tuple[str, str] | None:
        """The headings of the last answer and of earlier ones, from a chat of two questions.

        A heading is the beginning that a turn shares with the generation prompt. None if the turns
        cannot be told apart.
        """
        earlier, last = [], []
        try:
            prompt = self._generation_prompt()
            for answer in _ANSWERS:
                text, turns = self._turns(self._chat(answer, "b", answer))
                if len(turns) != 2:
                    return None
                for turn, of in zip(turns, (earlier, last), strict=True):
                    of.append(text[slice(*turn)])
        except ValueError:  # the template does not take plain questions and answers
            return None
        # A template that ends a turn in the round of the next message would lose the end of turn.
        ends = [bool(of[0].partition(_ANSWERS[0])[2]) for of in (earlier, last)]
        if ends[0] != ends[1]:
            return None
        return _common([prompt, *last]), _common([prompt, *earlier])

    def _generation_prompt(self) -> str:
        asked = self._chat("x", "b")
        without = self._template.render(asked).text
        prompted = self._template.render(asked, add_generation_prompt=True).text
        if prompted.startswith(without):
            return prompted[len(without) :]
        # Phi-3 ends the text with another token where no answer is to follow.
        rendered = self._template.render_turns(asked[:2], add_generation_prompt=True)
        behind = rendered.text[rendered.spans[-1][1] :] if rendered.spans else ""
        if not behind:
            raise ValueError("no generation prompt behind the messages")
        return behind

    def _chat(self, *texts: str) -> list[dict[str, Any]]:
        """Returns a chat of the question "a" and `texts`, in turn."""
        chat = []
        for i, text in enumerate(["a", *texts]):
            content = text if self._template.takes_text else [{"type": "text", "text": text}]
            chat.append({"role": "assistant" if i % 2 else "user", "content": content})
        return chat


def _common(texts: Sequence[str]) -> str:
    """Returns the longest beginning of all texts."""
    alike = itertools.takewhile(lambda c: len(set(c)) == 1, zip(*texts, strict=False))
    return "".join(characters[0] for characters in alike)


def _count(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(message["role"] == "assistant" for message in messages)
