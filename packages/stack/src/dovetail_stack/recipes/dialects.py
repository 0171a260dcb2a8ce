# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The forms in which a model writes reasoning and calls of tools, by its own chat template.

The template writes a call of a planted tool, and the format of calls is the one that reads it back.
Reasoning is told by its marks in the template's source, since many templates leave that of former
answers out.
"""

import json
from typing import Any, NamedTuple

from dovetail_data import Template
from dovetail_infer.server import Dialect
from dovetail_infer.server.formats.dialect import TOOLS

_NAME, _ARGUMENTS = "dovetail_probe", {"city": "Bonn"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
_ASKS = {"role": "user", "content": "Go."}
_REASONING = {
    "gpt-oss": ("<|channel|>", "analysis"),
    "think": ("</think>",),
    "mistral": ("[/THINK]",),
}


class Calls(NamedTuple):
    """The form of calls in a template.

    Attributes:
        tools: The format. None: it is unknown, or the template does not write the tools on offer.
        objects: The template takes arguments as objects, not as texts of JSON.
    """

    tools: str | None
    objects: bool


def calls_of(template: Template) -> Calls:
    """Returns the form of calls that a template writes."""
    try:
        asked = template.render([_ASKS], tools=[_TOOL], add_generation_prompt=True).text
    except ValueError:
        asked = ""
    for objects in (True, False):
        answer = _answer(template, objects=objects).removeprefix(asked)
        for name in TOOLS:
            if _reads(name, answer):
                return Calls(name if _NAME in asked else None, objects)
    return Calls(None, True)


def reasoning_of(template: Template) -> str | None:
    """Returns the format of a template's reasoning; None without one."""
    marks = (name for name, texts in _REASONING.items() if all(t in template.source for t in texts))
    return next(marks, None)


def with_arguments(message: dict[str, Any], *, objects: bool) -> dict[str, Any]:
    """Returns a message whose calls have their arguments as a template takes them.

    Args:
        message: Of OpenAI's API: arguments are texts of JSON.
        objects: See `Calls`.
    """
    if not objects or "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
        for call in message["tool_calls"]
        for function in [call["function"]]
    ]
    return {**message, "tool_calls": calls}


def _answer(template: Template, *, objects: bool) -> str:
    """Returns a conversation with a call as the template writes it; "" if it does not."""
    function = {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    try:
        messages = [_ASKS, with_arguments(said, objects=objects)]
        return template.render(messages, tools=[_TOOL]).text
    except ValueError:
        return ""


def _reads(name: str, answer: str) -> bool:
    """Tells whether a format reads the planted call."""
    turn = Dialect(tools=name).turn({_NAME})
    calls = turn.read(answer, last=True).get("tool_calls", []) if turn else []
    try:
        given = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
    except ValueError:
        return False
    return given == [(_NAME, _ARGUMENTS)]
