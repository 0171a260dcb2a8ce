# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A request as the loop sees it: its options, the tokens drawn so far, and how it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail_infer.completion import Completion, FinishReason, Times, Tokens, TopLogprobs
from dovetail_infer.sampling import Sampling
from dovetail_infer.schedule.sequence import Sequence as Scheduled
from dovetail_infer.step.batch import Results, Scores
from dovetail_infer.step.slots import kept_of
from dovetail_infer.text import Detokenizer, StopStrings, decoder
from dovetail_infer.types import Tokenizer

_log = logging.getLogger(__name__)
Sink = Callable[[Tokens | Completion], None]


class Request:
    """One request, from its submission to its completion.

    Args:
        scheduled: The request as the scheduler sees it.
        sampling: Its options.
        seed: Seed of its draws.
        arrived: Value of `time.monotonic()` at its arrival.
        tokenizer: For its text, or None.
        eos_ids: Ids that end it, unless `Sampling.ignore_eos`.
        vocab_size: Number of token ids.
        sink: Receives the completion and, with `streams`, pieces before it. The engine's thread
            calls it, so it must not block.
        streams: Whether the sink wants pieces.
        targets: Tokens to score: for each token of the prompt the one after it, -1 for none.
        deadline: Value of `time.monotonic()` at which the request ends, or None.
        rule: Program of `Sampling.rule`, or None.
    """

    def __init__(
        self,
        scheduled: Scheduled,
        sampling: Sampling,
        *,
        seed: int,
        arrived: float,
        tokenizer: Tokenizer | None,
        eos_ids: tuple[int, ...],
        vocab_size: int,
        sink: Sink,
        streams: bool = False,
        targets: np.ndarray | None = None,
        deadline: float | None = None,
        rule: Any = None,
    ):
        self.scheduled, self.sampling, self.seed = scheduled, sampling, seed
        self.targets, self.deadline, self.rule = targets, deadline, rule
        self.streams, self._sink, self._vocab_size = streams, sink, vocab_size
        self.eos_ids = eos_ids
        ends = () if sampling.ignore_eos else eos_ids
        self._stop_ids = frozenset((*ends, *sampling.stop_token_ids))
        self._text = None if tokenizer is None else _Text(tokenizer, sampling, streams=streams)
        count = 0 if targets is None else int(np.sum(targets >= 0))
        self._drawn, self._reads = _Drawn(), _Reads(count)
        self._sent, self._arrived = 0, arrived
        self._queued_s: float | None = None
        self._token_s: list[float] = []  # of the first and the last

    @property
    def request_id(self) -> int:
        """Number of the request, in order of submission."""
        return self.scheduled.request_id

    def begin(self) -> None:
        """Notes that a step with the request is planned."""
        if self._queued_s is None:
            self._queued_s = self._elapsed_s()

    def needs_scores(self, start: int) -> bool:
        """Tests whether a step that reads from position `start` on scores tokens."""
        return self.targets is not None and start < self.scheduled.prompt_length

    def draw(self, results: Results, row: int, *, version: int) -> FinishReason | None:
        """Takes the token that a step has drawn for this request.

        Args:
            results: Results of the step.
            row: Row of the request in the step.
            version: Version of the weights.

        Returns:
            Why the request ends with this token, or None.
        """
        token = self._drawn.add(results, row, version=version, sampling=self.sampling)
        self._token_s[1:] = [self._elapsed_s()]
        if token in self._stop_ids:
            self._drawn.stop = token
            return "stop"
        if self._text is not None:
            self._drawn.stop = self._text.push(token)
            if self._drawn.stop is not None:
                return "stop"
        if self.streams:
            self._send()
        total = self.scheduled.prompt_length + len(self._drawn.tokens)
        return "length" if total >= self.scheduled.max_total else None

    def read(self, results: Results, *, start: int, rows: slice) -> None:
        """Takes the scores and experts of tokens that a step has read.

        Args:
            results: Results of the step.
            start: Position of the first of them.
            rows: Their rows in the step.
        """
        self._reads.add(results, start=start, rows=rows)

    def finish(self, reason: FinishReason, *, error: str | None = None) -> FinishReason:
        """Ends the request and sends its completion. Call it once.

        Returns:
            The reason in the completion: the last of the text may complete a stop string, and a
            tokenizer may fail.
        """
        if self._text is not None and not isinstance(self._drawn.stop, str):
            try:
                stop = self._text.flush(self._drawn.tokens, ended=self._drawn.stop)
            except Exception as failure:
                _log.exception("the text of request %d is not complete", self.request_id)
                stop, reason = None, "error"
                error = error or f"{type(failure).__name__}: {failure}"
            if stop is not None and reason in ("stop", "length"):
                self._drawn.stop, reason = stop, "stop"
        if self.streams:
            self._send(last=True)
        self._sink(self._completion(reason, error))
        return reason

    def _send(self, *, last: bool = False) -> None:
        text = "" if self._text is None else self._text.take()
        if self._text is not None and not text and not last:
            return
        tokens = np.array(self._drawn.tokens[self._sent :], np.int32)
        if len(tokens) or text:
            logprobs = np.array(self._drawn.logprobs[self._sent :], np.float32)
            top = self._drawn.top(self.sampling.logprobs, start=self._sent)
            self._sink(Tokens(text=text, tokens=tokens, logprobs=logprobs, top=top))
        self._sent = len(self._drawn.tokens)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._arrived

    def _completion(self, reason: FinishReason, error: str | None) -> Completion:
        sampling, drawn, scores = self.sampling, self._drawn, self._reads.scores()
        return Completion(
            text="" if self._text is None else self._text.text,
            tokens=np.array(drawn.tokens, np.int32),
            logprobs=np.array(drawn.logprobs, np.float32),
            sampled_logprobs=np.array(drawn.sampled_logprobs, np.float32),
            log_mass=np.array(drawn.log_mass, np.float32),
            finish_reason=reason,
            stop=drawn.stop if reason == "stop" else None,
            error=error,
            versions=np.array(drawn.versions, np.int32),
            seed=self.seed,
            prompt_tokens=self.scheduled.prompt_length,
            cached_tokens=self.scheduled.cached,
            top=drawn.top(sampling.logprobs),
            prompt_logprobs=None if scores is None else scores.logprobs,
            prompt_top=_top(scores, sampling.prompt_logprobs)
            if scores is not None and sampling.prompt_logprobs
            else None,
            kept=kept_of(drawn.kept, top_k=sampling.top_k, vocab_size=self._vocab_size)
            if sampling.kept
            else None,
            experts=self._reads.experts(),
            times=Times(
                queued_s=self._queued_s,
                first_token_s=self._token_s[0] if self._token_s else None,
                last_token_s=self._token_s[-1] if self._token_s else None,
                total_s=self._elapsed_s(),
            ),
        )


class _Drawn:
    """Tokens of a completion with their numbers, one entry each."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.sampled_logprobs: list[float] = []
        self.log_mass: list[float] = []
        self.versions: list[int] = []
        self.kept: list[np.ndarray] = []
        self.stop: str | int | None = None
        self._top: list[Scores] = []

    def add(self, results: Results, row: int, *, version: int, sampling: Sampling) -> int:
        token = int(results.tokens[row])
        self.tokens.append(token)
        self.logprobs.append(float(results.logprobs[row]))
        self.sampled_logprobs.append(float(results.sampled_logprobs[row]))
        self.log_mass.append(float(results.log_mass[row]))
        self.versions.append(version)
        if sampling.logprobs is not None:
            assert results.top is not None
            self._top.append(_rows(results.top, slice(row, row + 1)))
        if sampling.kept:
            assert results.kept is not None
            self.kept.append(np.array(results.kept[row]))
        return token

    def top(self, k: int | None, *, start: int = 0) -> TopLogprobs | None:
        if k is None:
            return None
        if start < len(self._top):
            return _top(_joined(self._top[start:]), k)
        none = np.zeros((0, k), np.int32)
        return TopLogprobs(
            tokens=none, logprobs=none.astype(np.float32), ranks=np.zeros(0, np.int32)
        )


class _Reads:
    """Scores and experts of the tokens that steps have read, in order of positions.

    After a preemption tokens are read again; the first values stay.

    Args:
        count: Number of tokens with a target, which are the first.
    """

    def __init__(self, count: int):
        self.tokens, self._count = 0, count
        self._scores: list[Scores] = []
        self._experts: list[np.ndarray] = []

    def add(self, results: Results, *, start: int, rows: slice) -> None:
        end = start + rows.stop - rows.start
        if end <= self.tokens:
            return
        new = slice(rows.start + max(self.tokens - start, 0), rows.stop)
        if results.prompt is not None and self.tokens < self._count:
            self._scores.append(_rows(results.prompt, new))
        if results.experts is not None:
            self._experts.append(np.array(results.experts[new]))
        self.tokens = end

    def scores(self) -> Scores | None:
        return _rows(_joined(self._scores), slice(self._count)) if self._scores else None

    def experts(self) -> np.ndarray | None:
        return np.concatenate(self._experts) if self._experts else None


class _Text:
    """Text of a completion, up to a stop string.

    Without stop strings and without a stream it is decoded once, at the end.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling, *, streams: bool):
        self._min_tokens = sampling.min_tokens
        skips = sampling.skip_special_tokens
        self._decode = decoder(tokenizer, skip_special_tokens=skips)
        incremental = streams or bool(sampling.stop)
        made = Detokenizer(tokenizer, skip_special_tokens=skips) if incremental else None
        self._detokenizer = made
        self._stops = StopStrings(sampling.stop)
        self._pieces: list[str] = []
        self._taken = 0
        self._tokens = 0

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self) -> str:
        """Returns the text since the last call."""
        text = "".join(self._pieces[self._taken :])
        self._taken = len(self._pieces)
        return text

    def push(self, token: int) -> str | None:
        """Adds a token. Returns the stop string that its text completes."""
        self._tokens += 1
        return None if self._detokenizer is None else self._add(self._detokenizer.push([token]))

    def flush(self, tokens: list[int], *, ended: int | str | None) -> str | None:
        """Adds the text that was held back. Returns the stop string that it completes.

        Args:
            tokens: All tokens.
            ended: The stop id at their end, if one ended the request.
        """
        if self._detokenizer is None:
            self._pieces = [self._decode(tokens[:-1] if ended is not None else tokens)]
            return None
        stop = self._add(self._detokenizer.flush())
        if stop is None:
            self._pieces.append(self._stops.flush())
        return stop

    def _add(self, text: str) -> str | None:
        shown, stop = self._stops.push(text, counts=self._tokens >= self._min_tokens)
        self._pieces.append(shown)
        return stop


def _rows(scores: Scores, rows: slice) -> Scores:
    return Scores(*(np.array(x[rows]) for x in scores))


def _joined(scores: list[Scores]) -> Scores:
    return Scores(*(np.concatenate(x) for x in zip(*scores, strict=True)))


def _top(scores: Scores, k: int) -> TopLogprobs:
    return TopLogprobs(
        tokens=scores.top_tokens[:, :k], logprobs=scores.top_logprobs[:, :k], ranks=scores.ranks
    )
