# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of `dovetail generate --prompts FILE.jsonl`, checked before any of them runs.

Each line is an object with "prompt", a text, or "messages" (and "tools") for the chat template of
the model. Other keys are options of `dovetail_infer.Sampling`, which replace those of the command.
"""

import dataclasses
import difflib
import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from dovetail_data import ChatTokenizer, Corrupt, Prompt, foreign_id
from dovetail_infer import Completion, Sampling
from dovetail_stack.recipes.dialogue import template_of
from dovetail_stack.recipes.record_options import Dialogue

PROMPT, MESSAGES, TOOLS = "prompt", "messages", "tools"
# What a file cannot say, or what would make its results depend on the clock.
_NOT_IN_FILES = {"rule", "adapter", "kept", "deadline_s"}
OPTIONS = tuple(f.name for f in dataclasses.fields(Sampling) if f.name not in _NOT_IN_FILES)
_KEYS = (PROMPT, MESSAGES, TOOLS, *OPTIONS)
_SEEDS = 2**64
_ENCODED = 1000  # prompts given to the tokenizer at once
WINDOW = 16  # requests that are generated, written and synced together
# Windows at work, and windows begun before the oldest must be written. A long request holds up
# those behind it; meanwhile their results wait in memory, and would be lost with the process.
WORKERS, AHEAD = 8, 64
# Files of a model whose change gives other results.
_SUFFIXES = {".json", ".jinja", ".safetensors"}
Generate = Callable[[Sequence[Any], Sequence[Sampling]], Sequence[Completion]]


class RefusedError(ValueError):
    """A file of prompts or of results that cannot be used as it is."""

    exit_code = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A line of the file.

    Attributes:
        index: Its number, from 0.
        source: Its "prompt", or its "messages" and "tools".
        sampling: All options. Without a seed in the line, the seed is the command's plus the index,
            so equal prompts have different results.
        digest: Digest of source, options and model.
    """

    index: int
    source: dict[str, Any]
    sampling: Sampling
    digest: str


def read(file: Path, options: Mapping[str, Any], *, model: str) -> list[Request]:
    """Reads all requests.

    Args:
        file: JSON lines.
        options: Options of the command, by name of `Sampling`, with a seed.
        model: Digest of the model, and of how it computes.

    Raises:
        RefusedError: A line is not an object, or has an unknown key or a wrong value.
    """
    with file.open("rb") as lines:
        requests = [_request(raw, i, options, model, file) for i, raw in enumerate(lines)]
    if not requests:
        raise RefusedError(
            f'a file of prompts must have a line, got an empty {str(file)!r}: write {{"prompt": '
            '"..."}'
        )
    return requests


def _request(raw: bytes, index: int, options: Mapping[str, Any], model: str, file: Path) -> Request:
    where = f"line {index + 1} of {str(file)!r}"
    try:
        line = json.loads(raw)
    except ValueError as error:
        raise RefusedError(f"{where} must be JSON, got {error}: correct it") from error
    if not isinstance(line, dict) or (PROMPT in line) == (MESSAGES in line):
        raise RefusedError(
            f'{where} must be an object with either "{PROMPT}" or "{MESSAGES}", got '
            f'{str(line)[:60]}: write {{"{PROMPT}": "..."}}'
        )
    for key in line:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            raise RefusedError(
                f'{where} must have keys of {", ".join(_KEYS)}; got "{key}": '
                + (f'write "{near[0]}"' if near else "leave it out, results have the line's index")
            )
    own = {name: line[name] for name in OPTIONS if name in line}
    try:
        sampling = _sampling({**options, "seed": (options["seed"] + index) % _SEEDS, **own})
    except (TypeError, ValueError) as error:
        raise RefusedError(f"{where}: {error}") from error
    source = {key: line[key] for key in (PROMPT, MESSAGES, TOOLS) if key in line}
    return Request(
        index=index, source=source, sampling=sampling, digest=_digest(source, sampling, model)
    )


def _sampling(options: dict[str, Any]) -> Sampling:
    """Returns the options of a line. JSON has texts for the keys of `logit_bias`."""
    if not isinstance(options["ignore_eos"], bool):
        raise TypeError(
            f"ignore_eos must be true or false, got ignore_eos={options['ignore_eos']!r}. Use "
            "false to end at the end-of-text id."
        )
    bias = options["logit_bias"]
    if isinstance(bias, dict):
        options["logit_bias"] = {int(i) if i.isdecimal() else i: x for i, x in bias.items()}
    return Sampling(**options)


def _digest(source: Mapping[str, Any], sampling: Sampling, model: str) -> str:
    values = {name: getattr(sampling, name) for name in OPTIONS}
    text = json.dumps([model, source, values], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def digest_of(directory: Path) -> str:
    """Returns a digest of the files of a model: weights, configuration, tokenizer, template."""
    digest = hashlib.sha256()
    for file in sorted(f for f in directory.iterdir() if f.suffix in _SUFFIXES):
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256")
        digest.update(f"{file.name} {content.hexdigest()}\n".encode())
    return digest.hexdigest()


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


def generated(
    generate: Generate, requests: Sequence[Request], prompts: Sequence[Any]
) -> Iterator[list[tuple[Request, Completion]]]:
    """Yields windows of requests with their completions, in the order of the requests.

    Several windows are at work at once, so a new one fills the places that an old one leaves.

    Args:
        generate: `Engine.generate`, which threads may call at the same time.
        requests: The requests.
        prompts: The ids of each.
    """
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="dovetail-prompts")
    begun: deque[tuple[Sequence[Request], Future[Sequence[Completion]]]] = deque()

    def oldest() -> list[tuple[Request, Completion]]:
        window, completions = begun.popleft()
        return list(zip(window, completions.result(), strict=True))

    try:
        for start in range(0, len(requests), WINDOW):
            if len(begun) == AHEAD:
                yield oldest()
            window, ids = requests[start : start + WINDOW], prompts[start : start + WINDOW]
            begun.append((window, pool.submit(generate, ids, [r.sampling for r in window])))
        while begun:
            yield oldest()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def described(completion: Completion) -> dict[str, Any]:
    """Returns the JSON values of a completion. Log-probabilities come where they were asked for.

    Numbers are the shortest that are the same in float32; -inf and NaN are null.
    """
    values: dict[str, Any] = {
        "text": completion.text,
        "tokens": completion.tokens.tolist(),
        "finish_reason": completion.finish_reason,
        "stop": completion.stop,
        "seed": completion.seed,
        "prompt_tokens": completion.prompt_tokens,
    }
    if completion.error is not None:
        values["error"] = completion.error
    if completion.top is not None:
        values["logprobs"] = _numbers(completion.logprobs)
        values["top"] = _top(completion.top)
    if completion.prompt_logprobs is not None:
        values["prompt_logprobs"] = _numbers(completion.prompt_logprobs)
        if completion.prompt_top is not None:
            values["prompt_top"] = _top(completion.prompt_top)
    return values


def _top(top: Any) -> list[dict[str, Any]]:
    """Returns for each step the rank of its token, and the likeliest tokens."""
    return [
        {
            "rank": int(rank),
            "tokens": [int(i) for i in tokens if i >= 0],
            "logprobs": _numbers(logprobs[tokens >= 0]),
        }
        for rank, tokens, logprobs in zip(top.ranks, top.tokens, top.logprobs, strict=True)
    ]


def _numbers(values: Any) -> list[float | None]:
    return [float(str(x)) if math.isfinite(x) else None for x in values]
