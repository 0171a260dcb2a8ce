# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The class behind `LMEval`, in a file of its own because its base class is in an extra."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx
from jax.sharding import Mesh
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]

from dovetail_train.eval.likelihood import Likelihoods, loglikelihood, rolling_loglikelihood
from dovetail_train.eval.text import HuggingFaceTokenizer, Sampler, TextEncoder, Tokenizer

_log = logging.getLogger(__name__)
# The harness's own, for tasks that do not say.
_MAX_TOKENS = 256
# The names under which tasks say how many tokens to generate.
_MAX_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class Adapter(TemplateLM):
    """The model of `LMEval`. `cut_requests` counts requests whose context lost its left end.

    Args:
        model, tokenizer, length, rows, sampler, bos, attention, mesh, progress: See `LMEval`.
    """

    def __init__(
        self,
        model: nnx.Module,
        tokenizer: Tokenizer | HuggingFaceTokenizer,
        *,
        length: int,
        rows: int,
        sampler: Sampler | None,
        bos: bool | None,
        attention: Callable[..., Any] | None,
        mesh: Mesh | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        super().__init__()
        self._model, self._length, self._sampler = model, length, sampler
        self._text = TextEncoder(tokenizer, bos=bos)
        self._options = {"length": length, "rows": rows, "attention": attention, "mesh": mesh}
        self._options["progress"] = progress
        self.cut_requests = 0

    @property
    def eot_token_id(self) -> int:
        return self._text.prefix if self._text.eos is None else self._text.eos

    @property
    def prefix_token_id(self) -> int:
        return self._text.prefix

    @property
    def max_length(self) -> int:
        return self._length

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        if kwargs:
            raise TypeError(
                f"tok_encode must have no option but add_special_tokens, got {kwargs}; leave it out"
            )
        return self._text.encode(string, bos=add_special_tokens)

    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        likelihoods = loglikelihood(self._model, [pair[1:] for pair in requests], **self._options)
        self._report_cut(likelihoods)
        answers = [
            (float(a), bool(b)) for a, b in zip(likelihoods.logps, likelihoods.greedy, strict=True)
        ]
        for (texts, _, _), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        documents = [self.tok_encode(request.args[0]) for request in requests]
        likelihoods = rolling_loglikelihood(
            self._model, documents, prefix=self.prefix_token_id, **self._options
        )
        for request, logp in zip(requests, likelihoods.logps, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, float(logp))
        return likelihoods.logps.tolist()

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        if self._sampler is None:
            raise ValueError(
                f"a task that generates text needs a sampler, got sampler=None for "
                f"{len(requests)} requests; pass LMEval(..., sampler=...) or choose tasks of "
                f"log-likelihood"
            )
        kinds: dict[tuple[Any, ...], list[int]] = {}
        for i, request in enumerate(requests):
            kinds.setdefault(_generation(request.args[1]), []).append(i)
        texts = [""] * len(requests)
        for kind, members in kinds.items():
            for i, text in zip(
                members, self._generate([requests[i].args[0] for i in members], kind), strict=True
            ):
                texts[i] = text
                self.cache_hook.add_partial("generate_until", requests[i].args, text)
        return texts

    def _generate(self, contexts: Sequence[str], kind: tuple[Any, ...]) -> list[str]:
        """Returns the continuations of requests with equal (max_tokens, temperature, until)."""
        max_tokens, temperature, until = kind
        room = self._length - max_tokens
        if room < 1:
            raise ValueError(
                f"a prompt must have room beside what is generated, got {max_tokens} tokens to "
                f"generate for length={self._length}; set max_gen_toks in the task's "
                f"generation_kwargs, or pass a longer length"
            )
        prompts = [self.tok_encode(context) or [self.prefix_token_id] for context in contexts]
        self._count_cut(sum(len(prompt) > room for prompt in prompts))
        assert self._sampler is not None  # the caller checked
        continuations = self._sampler(
            [prompt[-room:] for prompt in prompts],
            max_tokens=max_tokens,
            temperature=temperature,
            until=until,
        )
        return [_before(self._text.decode(self._until_end(ids)), until) for ids in continuations]

    def _until_end(self, ids: Sequence[int]) -> list[int]:
        ids = [int(i) for i in ids]
        return ids[: ids.index(self.eot_token_id)] if self.eot_token_id in ids else ids

    def _report_cut(self, found: Likelihoods) -> None:
        self._count_cut(int((found.cut > 0).sum()))

    def _count_cut(self, count: int) -> None:
        self.cut_requests += count
        if count:
            _log.warning(
                "%d requests were longer than length=%d and lost the left end of their context",
                count,
                self._length,
            )


def _generation(options: Mapping[str, Any]) -> tuple[int, float, tuple[str, ...]]:
    """Parses generation_kwargs of a task into (max_tokens, temperature, until)."""
    options = dict(options)
    until = options.pop("until", None) or ()
    until = (until,) if isinstance(until, str) else tuple(until)
    asked = {name: options.pop(name) for name in _MAX_TOKENS_NAMES if name in options}
    temperature = options.pop("temperature", None)
    sampled = options.pop("do_sample", bool(temperature))
    if options or len(asked) > 1:
        raise ValueError(
            f"generation_kwargs must be of until, do_sample, temperature and one of "
            f"{', '.join(_MAX_TOKENS_NAMES)}, got {options or asked}; leave the others out of the "
            f"task, or out of gen_kwargs"
        )
    if sampled != bool(temperature) and temperature is not None:
        raise ValueError(
            f"do_sample and a temperature above 0 go together, got do_sample={sampled}, "
            f"temperature={temperature}; set do_sample: {bool(temperature)} in the task"
        )
    # do_sample alone samples from the model's own distribution, as in transformers.
    heat = 1.0 if temperature is None else float(temperature)
    max_tokens = int(next(iter(asked.values()), _MAX_TOKENS))
    return max_tokens, heat if sampled else 0.0, until


def _before(text: str, until: Sequence[str]) -> str:
    """Returns `text` up to the first stop."""
    for stop in until:
        if stop:
            text = text.split(stop)[0]
    return text
