# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Answering`: routes with a body, over the engine or the tokenizer."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from dovetail_infer.completion import Completion, Tokens
from dovetail_infer.engine import Engine
from dovetail_infer.run.prompts import prompt_ids
from dovetail_infer.run.stream import Streams
from dovetail_infer.sampling import Sampling
from dovetail_infer.server.access import VISIT, Visit
from dovetail_infer.server.answers import Answer, Chats, Completions
from dovetail_infer.server.bodies import requests, tools
from dovetail_infer.server.errors import ApiError, of_completion, of_engine
from dovetail_infer.server.exchange import EventStream, read_json, unless_gone
from dovetail_infer.server.fields import Fields
from dovetail_infer.server.formats.dialect import Dialect
from dovetail_infer.server.formats.turn import Turn
from dovetail_infer.server.metrics import Metrics
from dovetail_infer.server.models import Models
from dovetail_infer.types import NamingTokenizer, Tokenizer

_OF_CHAT = ("tools", "chat_template_kwargs", "reasoning_effort")


@runtime_checkable
class Chat(Protocol):
    """A chat template with its tokenizer."""

    def __call__(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        variables: Mapping[str, Any],
    ) -> Sequence[int]:
        """Returns the ids of a conversation up to the assistant's answer.

        Args:
            messages: Objects with "role" and "content", a text or None, and what else OpenAI's API
                has: "name", "tool_calls" with their arguments as texts, "tool_call_id"; and
                "reasoning_content".
            tools: {"type": "function", "function": {"name", "description", "parameters"}}; () for
                none.
            variables: Variables of the template, as "enable_thinking".

        Raises:
            ValueError: The template refuses them. An error that is not about the messages has the
                field's name for its first word.
        """
        ...


class Answering:
    """Completions, chat completions, and the tokens of texts.

    Args:
        engine: As for `app`, as are all others.
        models: An attribute.
        tokenizer: That of the engine.
        chat: Ids of a conversation, or None.
        dialect: Forms of reasoning and calls.
        defaults: Options of a request without them.
        max_body: Largest body in bytes.

    Attributes:
        models: Those of the server.
        metrics: What is counted.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        models: Models,
        tokenizer: Tokenizer,
        chat: Chat | None,
        dialect: Dialect,
        defaults: Sampling,
        max_body: int,
    ) -> None:
        self.models, self.metrics = models, Metrics(engine)
        self._engine, self._tokenizer, self._chat = engine, tokenizer, chat
        self._dialect, self._defaults, self._max_body = dialect, defaults, max_body

    async def tokenize(self, request: Request) -> Response:
        """Answers with the ids of a text or of messages."""
        fields = Fields(await read_json(request, self._max_body))
        requests.take_model(fields, self.models)
        if "messages" in fields:
            messages, offered = requests.messages(fields), tools.take_tools(fields)
            variables = tools.take_variables(fields)
            ids = await asyncio.to_thread(self._chat_ids, messages, offered, variables)
        else:
            text = fields.take("prompt", "a string")
            if text is None:
                raise fields.wrong("prompt", "a string, or messages an array", None)
            begins = fields.take("add_special_tokens", "a boolean", True)
            ids = await asyncio.to_thread(self._encode, text)
            if begins and self._tokenizer.bos_id is not None:
                ids = [self._tokenizer.bos_id, *ids]
        fields.end()
        values = {"count": len(ids), "max_model_len": self._engine.max_length, "tokens": ids}
        return json_response(values)

    async def detokenize(self, request: Request) -> Response:
        """Answers with the text of ids."""
        fields = Fields(await read_json(request, self._max_body))
        requests.take_model(fields, self.models)
        tokens = fields.items("tokens", "an integer")
        fields.end()
        size = self._engine.vocab_size
        for i, token in enumerate(tokens):
            if not 0 <= token < size:
                raise fields.wrong(f"tokens[{i}]", f"a token id from 0 to {size - 1}", token)
        return json_response({"prompt": await asyncio.to_thread(self._tokenizer.decode, tokens)})

    async def complete(self, http: Request) -> Response:
        """Answers a completion."""
        body = await read_json(http, self._max_body)
        # In a thread: other requests go on while the fields of a large body are checked.
        request, prompts = await asyncio.to_thread(self._read_completion, body)
        return await self._run(http, Completions, request, prompts, param="prompt")

    async def complete_chat(self, http: Request) -> Response:
        """Answers a chat completion."""
        body = await read_json(http, self._max_body)
        request, ids = await asyncio.to_thread(self._read_chat, body)
        turns = self._turns(request, ids)
        if turns is not None and isinstance(self._tokenizer, NamingTokenizer):
            sampling = dataclasses.replace(request.sampling, skip_special_tokens=False)
            request = dataclasses.replace(request, sampling=sampling)
        form = functools.partial(Chats, turns=turns)
        return await self._run(http, form, request, [ids], param="messages")

    def _read_completion(self, body: Any) -> tuple[requests.Request, list[list[int]]]:
        """Returns a checked body, and the ids of its prompts."""
        request = requests.completion(body, models=self.models, defaults=self._defaults)
        return request, self._prompts(request)

    def _read_chat(self, body: Any) -> tuple[requests.Request, list[int]]:
        """Returns a checked body, and the ids of its conversation."""
        request = requests.chat(body, models=self.models, defaults=self._defaults)
        return request, self._chat_ids(request.messages, request.tools, request.variables)

    def _turns(self, request: requests.Request, ids: Sequence[int]) -> list[Turn] | None:
        """Returns readers of the choices. None: there is nothing to tell from content."""
        opened = self._dialect.opened(self._tokenizer, ids)
        shows = not request.sampling.skip_special_tokens
        turns = [
            self._dialect.turn(request.names, opened=opened, shows_specials=shows)
            for _ in range(request.n)
        ]
        return [turn for turn in turns if turn is not None] or None

    async def load_adapter(self, http: Request) -> Response:
        """Loads an adapter."""
        load = self.models.loader()  # before the body is read
        body = await read_json(http, self._max_body)
        return PlainTextResponse(await self.models.load(body, load))

    async def unload_adapter(self, http: Request) -> Response:
        """Unloads an adapter, and answers when its last request has ended."""
        self.models.loader()
        return PlainTextResponse(await self.models.unload(await read_json(http, self._max_body)))

    def _encode(self, text: str) -> list[int]:
        return list(map(int, self._tokenizer.encode([text])[0].ids))

    def _prompts(self, request: requests.Request) -> list[list[int]]:
        """Returns the ids of the prompts of a completion. Its length is checked later."""
        try:
            return prompt_ids(
                request.prompts,
                tokenizer=self._tokenizer,
                vocab_size=self._engine.vocab_size,
                max_tokens=2**31,
                limit="",
            )
        except (TypeError, ValueError) as error:
            raise ApiError(str(error), param="prompt") from error

    def _chat_ids(
        self,
        messages: Sequence[dict[str, Any]],
        offered: Sequence[dict[str, Any]],
        variables: Mapping[str, Any],
    ) -> list[int]:
        """Returns the ids of a conversation, by the chat template. The arguments are its own."""
        if self._chat is None:
            raise ApiError(
                f"messages must go to a model with a chat template, got {self.models.name!r} "
                "without one; send a prompt to /v1/completions",
                param="messages",
            )
        if offered and self._dialect.tools is None:
            raise ApiError(
                f"tools must go to a model whose chat template writes calls in a form that this "
                f"server reads, got {self.models.name!r} without one; leave them out",
                param="tools",
            )
        try:
            return list(map(int, self._chat(messages, offered, variables)))
        except (RecursionError, ValueError) as error:
            field = str(error).partition(" ")[0]
            if field in _OF_CHAT:
                raise ApiError(str(error), param=field) from error
            raise ApiError(
                f"messages must fit the model's chat template, got: {error}; correct them",
                param="messages",
            ) from error

    async def _run(
        self,
        http: Request,
        form: Callable[..., Answer],
        request: requests.Request,
        prompts: Sequence[list[int]],
        *,
        param: str,
    ) -> Response:
        """Runs a checked request, and returns its answer or its stream."""
        answer = form(
            request=request, prompts=prompts, model=request.model, tokenizer=self._tokenizer
        )
        names = [*requests.OPTIONS, "logit_bias", "stop", "stop_token_ids", "logprobs"]
        try:
            sampling = self._sampling(request, prompts, param)
            streams = self._engine.streams(prompts, sampling, n=request.n)
            await streams.__aenter__()
        except ApiError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            raise of_engine(error, names) from error
        visit: Visit = http.scope[VISIT]
        visit.model = answer.model
        visit.spend(prompt=sum(map(len, prompts)))
        if request.stream:
            events = self._events(answer, streams, visit)
            return EventStream(events, {}, close=lambda: streams.__aexit__(None, None, None))
        try:
            completions = await unless_gone(http.receive, _completions(streams, visit))
        finally:
            await streams.__aexit__(None, None, None)
        for error in filter(None, map(of_completion, completions)):
            raise error
        return json_response(answer.whole(completions))

    def _sampling(
        self, request: requests.Request, prompts: Sequence[Sequence[int]], param: str
    ) -> Sampling:
        """Returns the options with the adapter and the number of tokens left by the prompts.

        Refuses requests that this engine can never run.
        """
        count, most = len(prompts) * request.n, self._engine.max_queue
        if count > most:  # before as many requests are made, of which none could ever run
            raise ApiError(
                f"{param} and n must ask for at most {most} choices, got {len(prompts)} and "
                f"{request.n}; send several requests",
                param=param if len(prompts) > most else "n",
            )
        longest = max(map(len, prompts))
        room, wanted = self._engine.max_length - longest, request.max_tokens
        least = 1 if wanted is None else max(wanted, 1)
        if room < least:
            raise ApiError(
                f"{param} and max_tokens must have at most {self._engine.max_length} tokens "
                f"together, got {longest} and {least}; shorten one of them",
                param=param,
                code="context_length_exceeded",
            )
        return dataclasses.replace(
            request.sampling,
            max_tokens=room if wanted is None else least,
            adapter=self.models.adapter_id(request.model),
        )

    async def _events(
        self, answer: Answer, streams: Streams, visit: Visit
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the chunks of a stream."""
        done: dict[int, Completion] = {}
        before: dict[int, float] = {}
        for index in range(len(answer.prompts) * answer.request.n):
            if (chunk := answer.first(index)) is not None:
                yield chunk
        async for index, piece in streams:
            visit.take(piece)
            if isinstance(piece, Tokens):
                self._time(before, index, visit.began)
            elif error := of_completion(piece):
                raise error
            else:
                done[index] = piece
            if (chunk := answer.chunk(index, piece)) is not None:
                yield chunk
        if (chunk := answer.last([done[i] for i in sorted(done)])) is not None:
            yield chunk

    def _time(self, before: dict[int, float], index: int, began: float) -> None:
        now = time.monotonic()
        if index in before:
            self.metrics.between_tokens_s.observe(now - before[index])
        else:
            self.metrics.first_token_s.observe(now - began)
        before[index] = now


async def _completions(streams: Streams, visit: Visit) -> list[Completion]:
    """Returns all completions, by index."""
    done: dict[int, Completion] = {}
    async for index, piece in streams:
        visit.take(piece)
        if isinstance(piece, Completion):
            done[index] = piece
    return [done[i] for i in sorted(done)]


def json_response(
    values: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns a response with a JSON value.

    Args:
        values: The value.
        status: Status of the response.
        headers: More headers.
    """
    return Response(orjson.dumps(values), status, headers, media_type="application/json")
