# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A directory of a language model as a server for clients of OpenAI's API."""

import datetime
import functools
import json
import re
from asyncio import Protocol
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_data import ChatTokenizer, Corrupt, Pretrained, Prompt, Template
from dovetail_data.tokenizing.message_keys import REASONING
from dovetail_data.tokenizing.template_files import read_json
from dovetail_infer import Engine
from dovetail_infer.server import AccessLog, Adapter, Chat, Dialect, KeyLimits, app
from dovetail_infer.server.application import Application
from dovetail_infer.server.models import LoadAdapter
from dovetail_models import generation_defaults
from dovetail_serve.http.limits import DEFAULT_LIMITS, Limits
from dovetail_serve.http.protocol import limited
from dovetail_stack.recipes import dialects
from dovetail_stack.recipes.dialogue import template_of
from dovetail_stack.recipes.record_options import Dialogue
from dovetail_stack.recipes.sampling import sampling_of

_OF_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")  # files of a PEFT directory


def application(
    engine: Engine,
    directory: Path,
    *,
    name: str,
    dialogue: Dialogue | None = None,
    dialect: Dialect | None = None,
    adapters: Mapping[str, Adapter] | None = None,
    load_adapter: LoadAdapter | None = None,
    api_keys: Sequence[str] = (),
    max_body: int = 16 << 20,
    limits: KeyLimits | None = None,
    lenient: bool = False,
    access_log: AccessLog | None = None,
) -> Application:
    """Returns the application; `dovetail_infer.server.run` serves it.

    Args:
        engine: An engine of the directory's model, as `recipes.engine.engine` makes it.
        directory: Its tokenizer, its chat template, and its suggestions for sampling, which hold
            for requests that say nothing else.
        name: The model's name, which requests must say.
        dialogue: Another chat template, or a date in place of today's.
        dialect: Other forms of reasoning and calls of tools than `dialect_of` gives.
        adapters: As for `dovetail_infer.server.app`.
        load_adapter: As for `dovetail_infer.server.app`.
        api_keys: As for `dovetail_infer.server.app`.
        max_body: As for `dovetail_infer.server.app`.
        limits: As for `dovetail_infer.server.app`.
        lenient: As for `dovetail_infer.server.app`.
        access_log: As for `dovetail_infer.server.app`.

    Raises:
        ValueError: A template is given and wrong, or the suggestions are not possible.
    """
    tokenizer = Pretrained(directory)
    dialogue = dialogue or Dialogue()
    suggested = generation_defaults(directory).sampling()
    return app(
        engine,
        name=name,
        tokenizer=tokenizer,
        chat=chat(directory, tokenizer, dialogue),
        dialect=dialect_of(directory, dialogue) if dialect is None else dialect,
        defaults=sampling_of(directory) if suggested else None,
        adapters=adapters,
        load_adapter=load_adapter,
        api_keys=api_keys,
        max_body=max_body,
        limits=limits,
        lenient=lenient,
        access_log=access_log,
    )


def connections(application: Application, limits: Limits = DEFAULT_LIMITS) -> type[Protocol]:
    """Returns a class of connections for `dovetail_infer.server.run`: those of `dovetail_serve`.

    They refuse ambiguous requests, and have limits of their number, sizes and times. Health and
    readiness are answered beyond their number.
    """
    return limited(
        limits,
        lambda status, sentence, _: application.refuse(status, sentence),
        lambda target: target in (b"/health", b"/ready"),
    )


def dialect_of(
    directory: Path,
    dialogue: Dialogue,
    *,
    tools: str | None = None,
    reasoning: str | None = None,
) -> Dialect:
    """Returns the forms in which a model writes reasoning and calls of tools.

    Args:
        directory: Its chat template and its tokenizer.
        dialogue: Another template.
        tools: A format in place of the template's own, or "none".
        reasoning: The same for reasoning.

    Raises:
        ValueError: A format is unknown, or the two do not go together.
    """
    template = _template(directory, dialogue)
    if template is None:
        return Dialect()
    names = (
        tools or dialects.calls_of(template).tools,
        reasoning or dialects.reasoning_of(template),
    )
    calls, thoughts = (None if name == "none" else name for name in names)
    added = read_json(directory / "tokenizer.json").get("added_tokens", [])
    specials = tuple(token["content"] for token in added if token.get("special"))
    return Dialect(tools=calls, reasoning=thoughts, specials=specials)


def chat(directory: Path, tokenizer: ChatTokenizer, dialogue: Dialogue) -> Chat | None:
    """Returns the ids of conversations by a model's chat template. None: it has no template.

    A template that writes the date gets that of the request. Reasoning of former answers is left
    out if the template does not read it.

    Args:
        directory: Has the template.
        tokenizer: Reads its output; what a message says never becomes a special token.
        dialogue: Another template, or a date in place of today's.
    """
    first = _template(directory, dialogue)
    if first is None:
        return None
    objects = dialects.calls_of(first).objects
    ignored = () if any(map(first.reads, REASONING)) else REASONING

    @functools.lru_cache(maxsize=8)
    def encoder(date: str, variables: str) -> Prompt:
        template = template_of(directory, Dialogue(template=dialogue.template, date=date))
        if given := json.loads(variables):
            known = {**template.variables, **given}
            template = Template(template.source, variables=known, now=template.now)
        return Prompt(tokenizer, template=template, field="messages", ignore_keys=ignored)

    def ids(
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        variables: Mapping[str, Any],
    ) -> Sequence[int]:
        _check(variables, first.source)
        said = [dialects.with_arguments(message, objects=objects) for message in messages]
        encode = encoder(_date(dialogue), json.dumps(variables, sort_keys=True))
        (document,) = encode([{"messages": said, "tools": list(tools) or None}])
        if document is None or isinstance(document, Corrupt):
            raise ValueError("no token came" if document is None else document.error)
        return np.asarray(document.arrays["tokens"]).tolist()

    return ids


def _date(dialogue: Dialogue) -> str:
    return dialogue.date or f"{datetime.date.today():%Y-%m-%d}"


def _template(directory: Path, dialogue: Dialogue) -> Template | None:
    """Returns the template of today; None if the directory has none and none is given."""
    dated = Dialogue(template=dialogue.template, date=_date(dialogue))
    try:
        return template_of(directory, dated)
    except ValueError:
        if dialogue.template is not None:
            raise
        return None


def _check(variables: Mapping[str, Any], source: str) -> None:
    """Refuses variables that a template does not read, in the words of a request."""
    for name in variables:
        if not re.search(rf"\b{re.escape(name)}\b", source):
            field = name if name == "reasoning_effort" else "chat_template_kwargs"
            raise ValueError(
                f"{field} must be read by the model's chat template, got {name[:60]!r}, which it "
                "does not name; leave it out"
            )


def beneath(folder: Path, path: str) -> Path:
    """Returns a directory beneath a folder, with all links followed.

    Args:
        folder: The folder.
        path: Its path, absolute or from the folder. The files of an adapter in it may be links too.

    Raises:
        ValueError: It is not beneath the folder, or one of its files is not.
    """
    root = folder.resolve()
    try:
        directory = (root / path).resolve()
        every = [directory, *((directory / name).resolve() for name in _OF_ADAPTER)]
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a NUL
        raise ValueError(f"it must be a path, got {error}: correct it") from error
    if not all(root in each.parents for each in every):
        raise ValueError(
            "it must lie beneath the folder of --allow-adapters, with its files and after all "
            "links, got another place: copy the adapter into the folder"
        )
    return directory
