# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random schedules over random pages: what a scheduler may do to an executor, and more."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32

from dovetail_infer.step.batch import Batch, Results, RowOptions
from dovetail_infer.step.executor import Executor
from dovetail_infer.step.handle import Handle
from dovetail_infer.step.logits import Kind


class Driven(NamedTuple):
    """Result of a request.

    Attributes:
        tokens: Drawn tokens.
        logprobs: Their log-probabilities.
        prompt_logprobs: Log-probability of each token of the prompt after the first, or NaN.
    """

    tokens: Int32[np.ndarray, " _"]
    logprobs: Float32[np.ndarray, " _"]
    prompt_logprobs: Float32[np.ndarray, " _"]


@dataclasses.dataclass
class _Request:
    prompt: np.ndarray
    tables: np.ndarray  # [G, C]
    max_tokens: int
    key: np.ndarray
    slot: int = -1
    computed: int = 0
    drawn: int = 0
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    scores: dict[int, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Row:
    request: _Request
    start: int
    count: int
    samples: bool


def options(rows: int, *, temperature: float = 0.0, keys: np.ndarray | None = None) -> RowOptions:
    """Returns options of rows without filters and penalties.

    Args:
        rows: R.
        temperature: Of all rows.
        keys: Key data u32[R, 2]. None: zeros.
    """

    def full(value: float) -> np.ndarray:
        return np.full(rows, value, np.float32)

    return RowOptions(
        temperature=full(temperature),
        top_k=np.zeros(rows, np.int32),
        top_p=full(1.0),
        min_p=full(0.0),
        repetition_penalty=full(1.0),
        frequency_penalty=full(0.0),
        presence_penalty=full(0.0),
        bans=np.zeros(rows, np.bool_),
        ruled=np.zeros(rows, np.bool_),
        keys=np.zeros((rows, 2), np.uint32) if keys is None else keys,
    )


def drive(
    executor: Executor,
    prompts: Sequence[Sequence[int] | Int[np.ndarray, " _"]],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    kinds: Sequence[Kind] = ("score",),
    seed: int = 0,
) -> list[Driven]:
    """Runs requests by a random schedule and returns their results.

    Steps mix chunks and single rows of random requests in random order, on random pages. Chunks end
    anywhere. Each result is read one step late, so drawn tokens are read on the device. Page tables
    have page 0 behind a window.

    Args:
        executor: The executor. Its cache must hold all requests at once.
        prompts: Token ids of each request.
        max_tokens: Tokens to draw, as far as `max_length` allows.
        temperature: Of all requests.
        kinds: Kinds of steps to draw from. Prompts are scored in steps of the kind "score".
        seed: Of the schedule. The key of request i is (0, i).
    """
    rng = np.random.default_rng(seed)
    limits = executor.limits
    columns = -(-limits.max_length // limits.page_size)
    free = [rng.permutation(group.pages) for group in limits.groups]
    requests = []
    for i, prompt in enumerate(prompts):
        pages = [ids[i * columns : (i + 1) * columns] for ids in free]
        tables = np.stack(pages).astype(np.int32)
        tokens = min(max_tokens, limits.max_length - len(prompt))
        key = np.array([0, i], np.uint32)
        requests.append(_Request(np.asarray(prompt, np.int32), tables, tokens, key))
    slots = list(range(limits.max_rows))
    last: tuple[Handle, list[_Row]] | None = None
    while live := [r for r in requests if r.drawn < r.max_tokens]:
        rows = _plan(executor, live, slots, rng)
        kind = kinds[int(rng.integers(len(kinds)))]
        batch = _batch(executor, rows, temperature)
        handle = executor.dispatch(batch, kind=kind, want=("prompt",) if kind == "score" else ())
        slots += [r.request.slot for r in rows if r.request.drawn == r.request.max_tokens]
        if last is not None:
            _tell(last[0].read(), last[1])
        last = handle, rows
    if last is not None:
        _tell(last[0].read(), last[1])
    return [_result(request) for request in requests]


def _plan(
    executor: Executor, live: list[_Request], slots: list[int], rng: np.random.Generator
) -> list[_Row]:
    """Returns random rows of a step, and marks them as computed.

    Args:
        executor: Has the limits.
        live: Requests that are not done.
        slots: Free slots. The rows take some.
        rng: Source of the choices.
    """
    rows, budget = [], executor.limits.step_tokens
    order = rng.permutation(len(live))[: rng.integers(1, len(live) + 1)]
    for i in order:
        request = live[i]
        if not budget or (request.slot < 0 and not slots):
            continue
        left = len(request.prompt) + request.drawn - request.computed
        count = int(rng.integers(1, min(left, budget) + 1))
        if request.slot < 0:
            request.slot = slots.pop(rng.integers(len(slots)))
        samples = count == left
        rows.append(_Row(request, request.computed, count, samples))
        request.computed += count
        request.drawn += samples
        budget -= count
    # Requests keep their slots: with all slots held by others, those go on.
    return rows or _plan(executor, [r for r in live if r.slot >= 0], slots, rng)


def _batch(executor: Executor, rows: list[_Row], temperature: float) -> Batch:
    tokens, targets = [], []
    for row in rows:
        end = row.start + row.count
        prompt = row.request.prompt
        ids = prompt[row.start : end]
        tokens += [ids, np.full(row.count - len(ids), -1)]
        ids = prompt[row.start + 1 : end + 1]
        targets += [ids, np.full(row.count - len(ids), -1)]
    count = len(rows)
    keys = np.stack([row.request.key for row in rows])
    return Batch(
        tokens=np.concatenate(tokens).astype(np.int32),
        counts=np.array([row.count for row in rows], np.int32),
        lengths=np.array([row.start + row.count for row in rows], np.int32),
        slots=np.array([row.request.slot for row in rows], np.int32),
        samples=np.array([row.samples for row in rows], np.bool_),
        tables=np.stack([_tables(executor, row) for row in rows], axis=1),
        options=options(count, temperature=temperature, keys=keys),
        adapters=np.full(count, -1, np.int32),
        targets=np.concatenate(targets).astype(np.int32),
    )


def _tables(executor: Executor, row: _Row) -> np.ndarray:
    """Returns the page tables of a row, with page 0 for pages behind the window."""
    tables = row.request.tables.copy()
    for table, window in zip(tables, executor.layout.windows, strict=True):
        if window is not None:
            table[: max(row.start - window + 1, 0) // executor.limits.page_size] = 0
    return tables


def _tell(results: Results, rows: list[_Row]) -> None:
    starts = np.cumsum([0, *(row.count for row in rows)])
    for i, row in enumerate(rows):
        request = row.request
        if row.samples:
            request.tokens.append(int(results.tokens[i]))
            request.logprobs.append(float(results.logprobs[i]))
        if results.prompt is not None:
            scores = results.prompt.logprobs[starts[i] : starts[i + 1]]
            request.scores |= {row.start + j: float(x) for j, x in enumerate(scores)}


def _result(request: _Request) -> Driven:
    of_prompt = [request.scores.get(i, np.nan) for i in range(len(request.prompt) - 1)]
    return Driven(
        np.array(request.tokens, np.int32),
        np.array(request.logprobs, np.float32),
        np.array(of_prompt, np.float32),
    )
