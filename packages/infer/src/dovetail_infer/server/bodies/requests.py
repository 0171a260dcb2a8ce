# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies of completions and chat completions: honoured fields and refused ones.

References: OpenAI's API (platform.openai.com/docs/api-reference), and options of vLLM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dovetail_infer.sampling import Sampling
from dovetail_infer.server.bodies import tools
from dovetail_infer.server.errors import ApiError
from dovetail_infer.server.fields import Fields, shown
from dovetail_infer.server.models import Models

MOST_CHOICES = 128
MOST_STOPS = 64  # each is looked for at each token, in the thread that all requests share
DEFAULT_TOKENS = 16  # of completions, in OpenAI's API
# Options of Sampling that a request names as we do, with the types of JSON.
OPTIONS = {
    "temperature": "a number",
    "top_p": "a number",
    "top_k": "an integer",
    "min_p": "a number",
    "frequency_penalty": "a number",
    "presence_penalty": "a number",
    "repetition_penalty": "a number",
    "min_tokens": "an integer",
    "seed": "an integer",
    "ignore_eos": "a boolean",
    "skip_special_tokens": "a boolean",
    "cache_salt": "a string",
}
# Fields that ask for nothing of the model: labels of the caller, and places in OpenAI's house.
LABELS = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_ELSEWHERE: dict[str, tuple[tuple[Any, ...], str]] = {
    "service_tier": (("auto", "default"), "this server has one tier"),
}
_COMPLETION: dict[str, tuple[tuple[Any, ...], str]] = {
    **_ELSEWHERE,
    "suffix": (("",), "this server has no infilling; put the text into the prompt"),
    "best_of": ((1,), "use n, and choose among the choices"),
}
_CHAT: dict[str, tuple[tuple[Any, ...], str]] = {
    **_ELSEWHERE,
    "response_format": (({"type": "text"},), "ask for the format in a message"),
    "functions": (([],), "write tools"),
    "function_call": (("none", "auto"), "write tool_choice"),
    "modalities": ((["text"],), "this server writes text"),
    "audio": ((), "this server writes text"),
    "prediction": ((), "leave it out"),
    "web_search_options": ((), "this server does not search"),
    "verbosity": (("medium",), "ask for it in a message"),
    "store": ((False,), "this server stores nothing"),
    "metadata": (({},), "this server stores nothing"),
}
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A checked body.

    Attributes:
        model: Name of the base model or of an adapter.
        prompts: Texts or token ids, of a completion.
        messages: Of a chat completion, in the form of OpenAI's API.
        tools: On offer, in the same form.
        names: Of the tools whose calls are read.
        variables: Variables of the chat template.
        sampling: Options; `max_tokens` is 1 if none was given, see `max_tokens`.
        max_tokens: The field: None without it, 0 for no new token.
        n: Choices of each prompt.
        echo: Begin each text with its prompt.
        logprobs: Likeliest tokens at each place, beside the drawn one. None: no log-probabilities.
        stream: Send pieces as they come.
        usage: Send the counts at the end of a stream.
    """

    model: str
    prompts: list[Any] = dataclasses.field(default_factory=list)
    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    names: frozenset[str] = frozenset()
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    sampling: Sampling
    max_tokens: int | None
    n: int
    echo: bool = False
    logprobs: int | None
    stream: bool
    usage: bool


def completion(body: Any, *, models: Models, defaults: Sampling) -> Request:
    """Reads the body of a completion.

    Args:
        body: The JSON value.
        models: Those of the server.
        defaults: Options of a request without them.

    Raises:
        ApiError: A field is unknown, has a wrong value, or asks for something absent.
    """
    fields = Fields(body)
    model = take_model(fields, models, required=True)
    logprobs = fields.take("logprobs", "an integer")
    echo, max_tokens = fields.take("echo", "a boolean", False), _max_tokens(fields, "max_tokens")
    if max_tokens == 0 and not echo:
        raise ApiError(
            "max_tokens must be at least 1 without echo, got 0; send echo=true for the prompt's "
            "log-probabilities",
            param="max_tokens",
        )
    request = Request(
        model=model,
        prompts=_prompts(fields),
        echo=echo,
        logprobs=logprobs,
        max_tokens=DEFAULT_TOKENS if max_tokens is None else max_tokens,
        **_common(fields, defaults, logprobs=logprobs, echo=echo),
    )
    if request.stream and echo and logprobs is not None:
        raise ApiError(
            "echo with logprobs must not be streamed, got stream=true; send stream=false",
            param="stream",
        )
    _refuse(fields, _COMPLETION)
    return request


def chat(body: Any, *, models: Models, defaults: Sampling) -> Request:
    """Reads the body of a chat completion.

    Args:
        body: The JSON value.
        models: Those of the server.
        defaults: Options of a request without them.

    Raises:
        ApiError: As in `completion`.
    """
    fields = Fields(body)
    model = take_model(fields, models, required=True)
    wants = fields.take("logprobs", "a boolean", False)
    top = fields.take("top_logprobs", "an integer", 0)
    if top and not wants:
        raise ApiError(
            f"logprobs must be true for top_logprobs, got top_logprobs={top} alone; send "
            "logprobs=true",
            param="top_logprobs",
        )
    logprobs = top if wants else None
    max_tokens = _max_tokens(fields, "max_completion_tokens", "max_tokens", least=1)
    offered = tools.take_tools(fields)
    request = Request(
        model=model,
        messages=messages(fields),
        tools=offered,
        names=tools.take_choice(fields, offered),
        variables=tools.take_variables(fields),
        logprobs=logprobs,
        max_tokens=max_tokens,
        **_common(fields, defaults, logprobs=logprobs, echo=False),
    )
    _refuse(fields, _CHAT)
    return request


def messages(fields: Fields) -> list[dict[str, Any]]:
    """Returns the messages of a chat, with texts in place of lists of text parts."""
    values = fields.items("messages", "an object")
    if not values:
        raise ApiError(
            'messages must have at least one message, got none; send [{"role": "user", "content": '
            '"..."}]',
            param="messages",
        )
    return [_message(Fields(value, f"messages[{i}]"), value) for i, value in enumerate(values)]


def _message(fields: Fields, value: Mapping[str, Any]) -> dict[str, Any]:
    role = fields.take("role", "a string")
    if role not in _ROLES:
        raise fields.wrong("role", f"one of {', '.join(_ROLES)}", value.get("role"))
    content = fields.take("content", "a string or an array")
    if isinstance(content, list):
        path = fields.name("content")
        texts = [_text_of(Fields(item, f"{path}[{i}]")) for i, item in enumerate(content)]
        content = "".join(texts)
    tool_calls = tools.take_calls(fields)
    if content is None and not (role == "assistant" and tool_calls):
        raise fields.wrong("content", "a string or an array of text parts", None)
    names = ("name", "tool_call_id", "reasoning", "reasoning_content")
    others = {name: fields.take(name, "a string") for name in names}
    reasoning = others.pop("reasoning")  # vLLM's name of it
    others["reasoning_content"] = others["reasoning_content"] or reasoning
    others = {name: other for name, other in others.items() if other is not None}
    fields.only("type", ("text",), "this server reads text")  # lm-eval 0.4.9 writes it
    for name in ("refusal", "audio", "function_call", "annotations"):
        fields.only(name, (), "this server reads text")
    fields.end()
    calls = {"tool_calls": tool_calls} if tool_calls else {}
    return {"role": role, "content": content, **others, **calls}


def _text_of(fields: Fields) -> str:
    kind = fields.take("type", "a string")
    if kind != "text":
        raise fields.wrong("type", "'text', the only kind that this server reads", kind)
    text = fields.take("text", "a string")
    if text is None:
        raise fields.wrong("text", "a string", None)
    fields.end()
    return text


def take_model(fields: Fields, models: Models, *, required: bool = False) -> str:
    """Returns the field "model"; it may be absent, for the base model.

    Args:
        fields: The body.
        models: Those of the server; the name of another is refused.
        required: Refuse a body without it.
    """
    name = fields.take("model", "a string")
    if name is None and required:
        raise ApiError(f"model must name a model, got none; send {models.name!r}", param="model")
    name = models.name if name is None else name
    models.adapter_id(name)
    return name


def _prompts(fields: Fields) -> list[Any]:
    """Returns the texts or token ids; a prompt is a text, or ids, and there may be a list of it."""
    prompt = fields.take("prompt", "a string or an array")
    if not prompt:
        raise ApiError(
            f"prompt must be a text, token ids or a list of these, and not empty, got "
            f"{shown(prompt)}; begin with the model's bos token",
            param="prompt",
        )
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        return [prompt]
    for i, item in enumerate(prompt):
        ids = isinstance(item, list) and all(type(token) is int for token in item)
        if not item or not (isinstance(item, str) or ids):
            raise fields.wrong(f"prompt[{i}]", "a text or token ids, not empty", item)
    return prompt


def _max_tokens(fields: Fields, *names: str, least: int = 0) -> int | None:
    """Returns the field, by the first name that is there."""
    given = {name: fields.take(name, "an integer") for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    if len(set(given.values())) > 1:
        came = " and ".join(f"{name}={value}" for name, value in given.items())
        raise ApiError(f"{names[0]} must be given once, got {came}; leave one out", param=names[0])
    for name, value in given.items():
        if value < least:
            raise fields.wrong(name, f"an integer from {least}", value)
    return next(iter(given.values()), None)


def _common(
    fields: Fields, defaults: Sampling, *, logprobs: int | None, echo: bool
) -> dict[str, Any]:
    """Returns the fields of both kinds of a request."""
    stream = fields.take("stream", "a boolean", False)
    usage = False
    if "stream_options" in fields:
        options = Fields(fields.take("stream_options", "an object"), "stream_options")
        usage = options.take("include_usage", "a boolean", False)
        options.only("include_obfuscation", (False,), "this server sends no padding")
        options.end()
        if not stream:
            raise ApiError(
                "stream_options must come with stream=true, got it alone; leave it out",
                param="stream_options",
            )
    given = {name: fields.take(name, kind) for name, kind in OPTIONS.items()}
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("top_k") in (0, -1):  # vLLM's words for all tokens
        given["top_k"] = None
    given |= _stops(fields)
    if "logit_bias" in fields:
        given["logit_bias"] = _bias(fields)
    if logprobs is not None:
        given["logprobs"] = logprobs
        if echo:
            given["prompt_logprobs"] = logprobs
    n = fields.within("n", 1, 1, MOST_CHOICES)
    for name in LABELS:
        fields.take(name, "a string")
    try:
        # The length is known with the prompt; min_tokens is compared with it then.
        sampling = dataclasses.replace(defaults, **{**given, "max_tokens": 2**31 - 1})
    except (TypeError, ValueError) as error:
        name = str(error).partition(" ")[0]
        raise ApiError(str(error), param=name if name in given else None) from error
    return {"sampling": sampling, "n": n, "stream": stream, "usage": usage}


def _stops(fields: Fields) -> dict[str, Any]:
    stop = fields.take("stop", "a string or an array", [])
    stops = [stop] if isinstance(stop, str) else fields.items("stop", "a string")
    if "" in stops:
        raise fields.wrong("stop", "texts with at least one character", "")
    if len(stops) > MOST_STOPS:
        raise fields.wrong("stop", f"at most {MOST_STOPS} texts", stops)
    ids = fields.items("stop_token_ids", "an integer")
    return {"stop": tuple(stops), "stop_token_ids": tuple(ids)} if stops or ids else {}


def _bias(fields: Fields) -> dict[int, float]:
    given = fields.take("logit_bias", "an object")
    values = Fields(given, "logit_bias")
    for key in given:
        if not (key.isascii() and key.isdecimal() and len(key) < 20):  # of 64 bits
            raise values.wrong(key, "a token id with a number", given[key])
        if not -100 <= values.take(key, "a number", 0) <= 100:
            raise values.wrong(key, "a number from -100 to 100", given[key])
    return {int(key): float(value or 0) for key, value in given.items()}


def _refuse(fields: Fields, others: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
    """Refuses fields of other servers, then unknown ones."""
    for name, (allowed, advice) in others.items():
        fields.only(name, allowed, advice)
    fields.end()
