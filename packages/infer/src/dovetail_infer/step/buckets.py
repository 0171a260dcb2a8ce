# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes of the programs that an engine compiles.

A step is padded to the size of a program. More sizes waste less padding and compile longer: with a
cache, the layers of a decoder run unrolled. The lattice has

- for decoding, where each row reads one token, powers of two and `max_rows`;
- for steps with prefill, `step_tokens` and its fourths, sixteenths and so on, down to 32 tokens,
  and the halves of those from 512 tokens on, each with 8 and with `max_rows` rows;
- with `prefill_tokens`, steps of that many and `max_rows` tokens too;
- for options that "plain" lacks, "full" at 1, 8 and `max_rows` decoding rows, and at two sizes with
  prefill;
- for the log-probabilities of prompts, "score" at the same two sizes with prefill.

A step without a program of its own size takes the next larger. With 64 rows and 2,048 tokens these
are 25 programs, and padding at most doubles the tokens of a decoding step.

A GPU differs in three points. Its smallest program has two rows, since XLA writes a product with
one row as an elementwise product and a reduction: a token of a model of 1.2 billion parameters took
1.585 ms with one row and 1.083 ms with two (H200, jax 0.11.2). Each decoding size has "greedy"
beside "plain": a program cannot skip the draws by itself, because the host would wait for the
device at the branch. These are 30 programs. And its decoding programs take steps with one token a
request alone (`Bucket.single`), which then need no pass for padding in each layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from dovetail_infer.step.batch import Batch
from dovetail_infer.step.logits import Kind

# Each can do all that those before it can.
KINDS: tuple[Kind, ...] = ("greedy", "plain", "full", "score")
_FEW_ROWS = 8
_LEAST_TOKENS = 32
_HALVED_TOKENS = 512  # 1,024 tokens in a program of 2,048 cost twice those in one of their own


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Size of a program.

    Attributes:
        tokens: Token rows of a step.
        rows: Requests of a step.
        kind: "greedy" takes the likeliest tokens; "plain" draws with temperature and filters;
            "full" adds bias, bans, penalties, rules, likeliest tokens and kept bits; "score" adds
            log-probabilities of given tokens.
        single: Whether each request has one token, so that rows are requests.
    """

    tokens: int
    rows: int
    kind: Kind
    single: bool = False


def lattice(
    *,
    step_tokens: int,
    max_rows: int,
    prefill_tokens: int | None = None,
    invariant: bool = False,
    gpu: bool = False,
) -> tuple[Bucket, ...]:
    """Returns the programs of an engine, by kind and then by size.

    Args:
        step_tokens: Largest number of tokens of a step, at least max_rows.
        max_rows: Largest number of requests of a step.
        prefill_tokens: Largest number of prompt tokens beside decoding requests, or None.
        invariant: One size for all steps. On a CPU the bits of a product depend on its size alone,
            so a request's results then do not depend on its company.
        gpu: Whether the programs are for a GPU.

    Raises:
        ValueError: A size is below 1, or step_tokens below max_rows.
    """
    if not 1 <= max_rows <= step_tokens:
        raise ValueError(
            "max_rows must be at least 1 and at most step_tokens, since each running request "
            f"reads a token, got max_rows={max_rows} and step_tokens={step_tokens}. Use "
            f"step_tokens={max(max_rows, 1)} or more."
        )
    least = 2 if gpu else 1
    step_tokens, max_rows = max(step_tokens, least), max(max_rows, least)
    if invariant:
        return tuple(Bucket(step_tokens, max_rows, kind) for kind in KINDS if kind != "greedy")
    powers = {2**i for i in range(max_rows.bit_length())}
    decode = {rows for rows in powers if least <= rows < max_rows} | {max_rows}
    few = min(_FEW_ROWS, max_rows)
    mixed = _fourths(step_tokens)
    coarse = {mixed[0], mixed[-1]} if len(mixed) < 3 else {mixed[1], mixed[-1]}
    mixed += [-(-tokens // 2) for tokens in mixed if tokens >= _HALVED_TOKENS]
    if prefill_tokens is not None and prefill_tokens + max_rows < step_tokens:
        mixed.append(prefill_tokens + max_rows)
        coarse.add(prefill_tokens + max_rows)
    drawing: tuple[Kind, ...] = ("greedy", "plain") if gpu else ("plain",)
    programs = {Bucket(rows, rows, kind, gpu) for rows in decode for kind in drawing}
    programs |= {Bucket(n, rows, "plain") for n in mixed for rows in (few, max_rows) if rows <= n}
    programs |= {Bucket(rows, rows, "full", gpu) for rows in (least, few, max_rows)}
    programs |= {Bucket(n, min(n, max_rows), kind) for n in coarse for kind in ("full", "score")}
    return tuple(sorted(programs, key=lambda p: (KINDS.index(p.kind), p.tokens, p.rows, p.single)))


def covering(programs: Iterable[Bucket]) -> tuple[Bucket, ...]:
    """Returns the few programs of a lattice that can run every step, though not the fastest way.

    These are the largest one for decoding, and those for the log-probabilities of prompts.
    """
    every = tuple(programs)
    rows = max(p.rows for p in every)
    decoding = {p for p in every if p.tokens == p.rows == rows and p.kind == "full"}
    return tuple(p for p in every if p in decoding or p.kind == KINDS[-1])


def smallest(
    programs: Iterable[Bucket], *, tokens: int, rows: int, kind: Kind, single: bool = False
) -> Bucket:
    """Returns the cheapest program that can run a step.

    Args:
        programs: Programs to choose from.
        tokens: Tokens of the step.
        rows: Requests of the step.
        kind: What the step asks for.
        single: Whether each request of the step has one token.

    Raises:
        ValueError: No program is large enough.
    """
    able = [
        p
        for p in programs
        if p.tokens >= tokens and p.rows >= rows and KINDS.index(p.kind) >= KINDS.index(kind)
        if single or not p.single
    ]
    if not able:
        raise ValueError(
            f"A program must hold the step, got tokens={tokens}, rows={rows} and kind={kind!r}. "
            "Use steps within Limits.step_tokens and Limits.max_rows."
        )
    return min(able, key=lambda p: (p.tokens, KINDS.index(p.kind), p.rows, not p.single))


def least_kind(kind: Kind, batch: Batch) -> Kind:
    """Returns the first kind that gives the results of `kind` for the rows of a step."""
    if kind not in ("greedy", "plain"):
        return kind
    if (batch.samples & batch.options.ruled).any():
        return "full"
    return "plain" if (batch.samples & (batch.options.temperature > 0)).any() else "greedy"


def _fourths(step_tokens: int) -> list[int]:
    """Returns step_tokens, a fourth of it and so on, in ascending order."""
    sizes = [step_tokens]
    while sizes[0] // 4 >= _LEAST_TOKENS:
        sizes.insert(0, -(-sizes[0] // 4))
    return sizes
