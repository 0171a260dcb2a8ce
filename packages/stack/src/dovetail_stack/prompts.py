# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Ids of the prompts of a file, those of messages by the chat template of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from dovetail_data import ChatTokenizer, Corrupt, Prompt, foreign_id
from dovetail_infer.batch import Request
from dovetail_infer.batch.requests import MESSAGES, PROMPT
from dovetail_stack.recipes.dialogue import template_of
from dovetail_stack.recipes.options import RefusedError
from dovetail_stack.recipes.record_options import Dialogue

_ENCODED = 1000  # prompts given to the tokenizer at once


def encode(
    requests: Sequence[Request],
    tokenizer: ChatTokenizer,
    directory: Path,
    *,
    max_length: int,
    vocab_size: int,
    dialogue: Dialogue | None = None,
) -> list[Int32[np.ndarray, " T"]]:
    """Returns the ids of each prompt, those of messages by the template of the model.

    Args:
        requests: The requests.
        tokenizer: The tokenizer of the model.
        directory: Directory with the template, which is read if a request has messages.
        max_length: Context length of the model.
        vocab_size: Rows of its embedding.
        dialogue: Another template, or the date of one. None: neither.

    Raises:
        RefusedError: A prompt is malformed, has no token or one that the model does not have, or
            leaves no room for one.
        ValueError: The template is needed, and missing or wrong.
    """
    ids: dict[int, Any] = {}
    for kind in (MESSAGES, PROMPT):
        members = [request for request in requests if kind in request.source]
        if not members:
            continue
        template = template_of(directory, dialogue or Dialogue()) if kind == MESSAGES else None
        encoder = Prompt(tokenizer, template=template, field=kind)
        for start in range(0, len(members), _ENCODED):
            some = members[start : start + _ENCODED]
            for request, document in zip(some, encoder([r.source for r in some]), strict=True):
                where = f"line {request.index + 1} of the prompts"
                tokens = _checked(document, where, max_length)
                check_ids(tokens, tokenizer, vocab_size, where=where)
                ids[request.index] = tokens
    return [ids[request.index] for request in requests]


def check_ids(
    tokens: Sequence[int] | np.ndarray, tokenizer: ChatTokenizer, vocab_size: int, *, where: str
) -> None:
    """Raises RefusedError if a prompt has an id that the model does not have.

    Args:
        tokens: Ids of the prompt.
        tokenizer: The tokenizer.
        vocab_size: Rows of the model's embedding.
        where: Names the prompt.
    """
    if wrong := foreign_id(tokens, tokenizer, vocab_size=vocab_size):
        raise RefusedError(
            f"{where} must have ids below the model's {vocab_size} rows, got {wrong}: leave it "
            "out, or use the tokenizer.json that the model was trained with"
        )


def _checked(document: Any, where: str, max_length: int) -> Any:
    """Returns the ids of a prompt."""
    if isinstance(document, Corrupt):
        raise RefusedError(f"{where}: {document.error}")
    if document is None:
        raise RefusedError(f"{where} must have a token, got an empty prompt: write a longer one")
    tokens = document.arrays["tokens"]
    if len(tokens) >= max_length:
        raise RefusedError(
            f"{where} must leave room for a token in the model's {max_length}, got {len(tokens)} "
            "tokens: write a shorter one"
        )
    return tokens
