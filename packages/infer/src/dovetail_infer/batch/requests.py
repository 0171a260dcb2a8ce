# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of a file of JSON lines, checked before any of them runs.

Each line is an object with "prompt", a text, or "messages" (and "tools") for a chat template. Its
other keys are options of `Sampling`.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail_infer.sampling import Sampling, fold_seed

PROMPT, MESSAGES, TOOLS = "prompt", "messages", "tools"
# What JSON cannot say, what changes no result, or what would make results depend on the clock.
_NOT_IN_FILES = ("rule", "adapter", "cache_salt", "kept", "priority", "deadline_s")
OPTIONS = tuple(f.name for f in dataclasses.fields(Sampling) if f.name not in _NOT_IN_FILES)
_KEYS = (PROMPT, MESSAGES, TOOLS, *OPTIONS)


class RefusedError(ValueError):
    """A file of prompts or of results that cannot be used as it is."""

    exit_code = 3  # of a command: refused data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A line of the file.

    Attributes:
        index: Its number, from 0.
        source: Its "prompt", or its "messages" and "tools".
        sampling: All options. Without a seed in the line, the seed is that of the call, folded
            with the index (`fold_seed`), so equal prompts have different results.
        digest: Digest of source, options and model.
    """

    index: int
    source: dict[str, Any]
    sampling: Sampling
    digest: str


def read(file: str | Path, sampling: Sampling, *, model: str) -> list[Request]:
    """Reads all requests.

    Args:
        file: JSON lines.
        sampling: Options, with a seed. Those of a line replace them.
        model: Names the weights and the way in which the engine computes. Results of another name
            are refused, see `Results`.

    Raises:
        RefusedError: A line is not an object, or has an unknown key or a wrong value.
        ValueError: `sampling` has no seed, or an option that a line cannot have.
    """
    plain = Sampling()
    wrong = {k: getattr(sampling, k) for k in _NOT_IN_FILES}
    wrong = {k: value for k, value in wrong.items() if value != getattr(plain, k)}
    if wrong or sampling.seed is None:
        came = ", ".join(f"{k}={value!r}" for k, value in (wrong or {"seed": None}).items())
        raise ValueError(
            f"options of a file must have a seed, and no {', '.join(_NOT_IN_FILES)}, got {came}. "
            "Use Sampling(seed=0), or Engine.generate."
        )
    with Path(file).open("rb") as lines:
        requests = [_request(raw, i, sampling, model, file) for i, raw in enumerate(lines)]
    if not requests:
        raise RefusedError(
            f'a file of prompts must have a line, got an empty {str(file)!r}: write {{"prompt": '
            '"..."}'
        )
    return requests


def _request(raw: bytes, index: int, sampling: Sampling, model: str, file: str | Path) -> Request:
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
        option = _replaced(sampling, {"seed": fold_seed(sampling.seed or 0, prompt=index), **own})
    except (TypeError, ValueError) as error:
        raise RefusedError(f"{where}: {error}") from error
    source = {key: line[key] for key in (PROMPT, MESSAGES, TOOLS) if key in line}
    return Request(
        index=index, source=source, sampling=option, digest=_digest(source, option, model)
    )


def _replaced(sampling: Sampling, own: dict[str, Any]) -> Sampling:
    """Returns the options of a line. JSON has texts for the keys of `logit_bias`."""
    for name, use in (
        ("ignore_eos", "false to end at the end-of-text id"),
        ("skip_special_tokens", "true for a text without them"),
    ):
        if not isinstance(own.get(name, False), bool):
            raise TypeError(f"{name} must be true or false, got {name}={own[name]!r}. Use {use}.")
    bias = own.get("logit_bias")
    if isinstance(bias, dict):
        own["logit_bias"] = {int(i) if i.isdecimal() else i: x for i, x in bias.items()}
    return dataclasses.replace(sampling, **own)


def _digest(source: Mapping[str, Any], sampling: Sampling, model: str) -> str:
    values = {name: getattr(sampling, name) for name in OPTIONS}
    text = json.dumps([model, source, values], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
