# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`app`: an engine as an ASGI application, alone or inside of another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail_infer.engine import Engine
from dovetail_infer.sampling import Sampling
from dovetail_infer.server.answering import Answering, Chat
from dovetail_infer.server.application import Application
from dovetail_infer.server.formats.dialect import Dialect
from dovetail_infer.server.limits import KeyLimits
from dovetail_infer.server.models import Adapter, LoadAdapter, Models
from dovetail_infer.types import Tokenizer


def app(
    engine: Engine,
    *,
    name: str,
    tokenizer: Tokenizer,
    chat: Chat | None = None,
    dialect: Dialect | None = None,
    defaults: Sampling | None = None,
    adapters: Mapping[str, Adapter] | None = None,
    load_adapter: LoadAdapter | None = None,
    api_keys: Sequence[str] = (),
    max_body: int = 16 << 20,
    limits: KeyLimits | None = None,
    lenient: bool = False,
    access_log: Callable[[dict[str, Any]], object] | None = None,
) -> Application:
    """Returns an ASGI application for clients of OpenAI's API.

    Its routes are /v1/models, /v1/completions, /v1/chat/completions, /v1/load_lora_adapter,
    /v1/unload_lora_adapter, /tokenize, /detokenize, /health, /ready, /metrics, and a page for
    people at /. The engine is closed by the caller.

    Args:
        engine: Runs the requests.
        name: The model's name in requests.
        tokenizer: That of the engine.
        chat: The model's chat template. None: chat completions are refused.
        dialect: Forms in which the model writes reasoning and calls of tools. None: all text is
            content, and tools are refused.
        defaults: Options of requests without them. None: those of OpenAI's API.
        adapters: Loaded adapters of the engine, by the names that choose them in requests.
        load_adapter: Loads the adapter of a path that a client sent, and returns its id; raises
            ValueError or OSError for one that it refuses. None: clients cannot change adapters.
        api_keys: Requests need `Authorization: Bearer KEY` with one of them, except for health,
            readiness and the page, which asks for it. (): no key.
        max_body: Largest body of a request in bytes.
        limits: Limits of each key. None: no limit.
        lenient: Ignore unknown fields of requests, and name them in the header Warning.
        access_log: Called with plain values of each request. It must not block, see `AccessLog`.

    Returns:
        The application. Set its `draining` before a shutdown: new requests then get 503.

    Raises:
        ValueError: An option is out of range, or a name or an id of an adapter is wrong.

    Example:

        >>> from flax import nnx
        >>> from dovetail_infer import Engine
        >>> from dovetail_infer.server import app
        >>> from dovetail_infer.testing import ByteTokenizer, TinyDecoder
        >>> tokenizer = ByteTokenizer()
        >>> engine = Engine(TinyDecoder(rngs=nnx.Rngs(0)), tokenizer=tokenizer)
        >>> application = app(engine, name="tiny", tokenizer=tokenizer)
        >>> engine.close()
    """
    if max_body < 1:
        raise ValueError(
            f"max_body must be a number of bytes from 1, got max_body={max_body}. Use "
            f"max_body={16 << 20}."
        )
    for key in api_keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(
                "api_keys must be printable ASCII without spaces, got another one. Write one from "
                "secrets.token_urlsafe()."
            )
    models = Models(engine, name, adapters=adapters or {}, load=load_adapter)
    answering = Answering(
        engine,
        models=models,
        tokenizer=tokenizer,
        chat=chat,
        dialect=Dialect() if dialect is None else dialect,
        defaults=Sampling() if defaults is None else defaults,
        max_body=max_body,
    )
    return Application(
        engine,
        answering,
        api_keys=api_keys,
        limits=KeyLimits() if limits is None else limits,
        lenient=lenient,
        access_log=access_log,
    )
