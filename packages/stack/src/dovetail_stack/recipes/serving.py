# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A directory of a language model as a server for clients of OpenAI's API."""

import datetime
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_data import ChatTokenizer, Corrupt, Pretrained, Prompt
from dovetail_infer import Engine
from dovetail_infer.server import Chat, app
from dovetail_infer.server.application import Application
from dovetail_models import generation_defaults
from dovetail_stack.recipes.dialogue import template_of
from dovetail_stack.recipes.record_options import Dialogue
from dovetail_stack.recipes.sampling import sampling_of


def application(
    engine: Engine,
    directory: Path,
    *,
    name: str,
    dialogue: Dialogue | None = None,
    api_keys: Sequence[str] = (),
    max_body: int = 16 << 20,
) -> Application:
    """Returns the application; `dovetail_infer.server.run` serves it.

    Args:
        engine: An engine of the directory's model, as `recipes.engine.engine` makes it.
        directory: Its tokenizer, its chat template, and its suggestions for sampling, which hold
            for requests that say nothing else.
        name: The model's name, which requests must say.
        dialogue: Another chat template, or a date in place of today's.
        api_keys: As for `dovetail_infer.server.app`.
        max_body: As for `dovetail_infer.server.app`.

    Raises:
        ValueError: A template is given and wrong, or the suggestions are not possible.
    """
    tokenizer = Pretrained(directory)
    suggested = generation_defaults(directory).sampling()
    return app(
        engine,
        name=name,
        tokenizer=tokenizer,
        chat=chat(directory, tokenizer, dialogue or Dialogue()),
        defaults=sampling_of(directory) if suggested else None,
        api_keys=api_keys,
        max_body=max_body,
    )


def chat(directory: Path, tokenizer: ChatTokenizer, dialogue: Dialogue) -> Chat | None:
    """Returns the ids of conversations by a model's chat template. None: it has no template.

    A template that writes the date gets that of the request.

    Args:
        directory: Has the template.
        tokenizer: Reads its output; what a message says never becomes a special token.
        dialogue: Another template, or a date in place of today's.
    """

    @functools.lru_cache(maxsize=2)
    def encoder(date: str) -> Prompt:
        given = Dialogue(template=dialogue.template, date=date)
        return Prompt(tokenizer, template=template_of(directory, given), field="messages")

    def today() -> str:
        return dialogue.date or f"{datetime.date.today():%Y-%m-%d}"

    def ids(messages: Sequence[dict[str, Any]]) -> Sequence[int]:
        (document,) = encoder(today())([{"messages": list(messages)}])
        if document is None or isinstance(document, Corrupt):
            raise ValueError("no token came" if document is None else document.error)
        return np.asarray(document.arrays["tokens"]).tolist()

    try:
        encoder(today())
    except ValueError:
        if dialogue.template is not None:
            raise
        return None
    return ids
