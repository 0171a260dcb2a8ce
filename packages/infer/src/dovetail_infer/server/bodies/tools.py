# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fields of chats about tools, reasoning and the variables of templates."""

from __future__ import annotations

import re
from typing import Any

import orjson

from dovetail_infer.server.fields import Fields

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def take_tools(fields: Fields) -> list[dict[str, Any]]:
    """Returns the tools of a chat, as its template reads them."""
    values = fields.items("tools", "an object")
    return [_tool(Fields(value, f"tools[{i}]")) for i, value in enumerate(values)]


def take_choice(fields: Fields, tools: list[dict[str, Any]]) -> frozenset[str]:
    """Returns the names of the tools that the model may call."""
    advice = "this server forces no call before it has grammars; ask for it in a message"
    fields.only("tool_choice", ("auto", "none"), advice)
    parallel = (True,) if tools else (True, False)
    fields.only("parallel_tool_calls", parallel, "take the first call of an answer")
    if fields.take("tool_choice", "a string") == "none":
        return frozenset()
    return frozenset(tool["function"]["name"] for tool in tools)


def take_calls(fields: Fields) -> list[dict[str, Any]]:
    """Returns the calls of a message of the assistant."""
    values = fields.items("tool_calls", "an object")
    path = fields.name("tool_calls")
    return [_call(Fields(value, f"{path}[{i}]")) for i, value in enumerate(values)]


def take_variables(fields: Fields) -> dict[str, Any]:
    """Returns variables of the chat template, which are texts, numbers and booleans."""
    given = fields.take("chat_template_kwargs", "an object", {})
    values = Fields(given, "chat_template_kwargs")
    variables = {name: values.take(name, "a boolean or a number or a string") for name in given}
    effort = fields.take("reasoning_effort", "a string")
    if effort is not None:
        if effort not in _EFFORTS:
            raise fields.wrong("reasoning_effort", f"one of {', '.join(_EFFORTS)}", effort)
        variables["reasoning_effort"] = effort
    return {name: value for name, value in variables.items() if value is not None}


def _tool(fields: Fields) -> dict[str, Any]:
    function = _function(fields, "this server has tools that are functions")
    name = function.take("name", "a string")
    if name is None or not _NAME.fullmatch(name):
        raise function.wrong("name", "1 to 64 letters, digits, _ and -", name)
    tool = {
        "name": name,
        "description": function.take("description", "a string"),
        "parameters": function.take("parameters", "an object"),
    }
    advice = "this server holds no answer to a schema before it has grammars"
    function.only("strict", (False,), advice)
    function.end()
    given = {name: value for name, value in tool.items() if value is not None}
    return {"type": "function", "function": given}


def _call(fields: Fields) -> dict[str, Any]:
    identity = fields.take("id", "a string")
    function = _function(fields, "this server reads calls of functions")
    name, text = function.take("name", "a string"), function.take("arguments", "a string")
    function.end()
    if not name:
        raise function.wrong("name", "a string with at least one character", name)
    try:
        if not isinstance(orjson.loads(text or ""), dict):
            raise ValueError
    except ValueError:
        raise function.wrong("arguments", "a string with an object of JSON", text) from None
    call = {"type": "function", "function": {"name": name, "arguments": text}}
    return {**({"id": identity} if identity else {}), **call}


def _function(fields: Fields, advice: str) -> Fields:
    """Returns the fields of "function"."""
    fields.only("type", ("function",), advice)
    function = Fields(fields.take("function", "an object"), fields.name("function"))
    fields.end()
    return function
