# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The engine: any decoder, with continuous batching over a paged cache."""

from __future__ import annotations

import dataclasses
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import DTypeLike, Float32

from dovetail_infer import _elsewhere, reference
from dovetail_infer.completion import Completion
from dovetail_infer.run.adapters import Adapters
from dovetail_infer.run.arguments import check_model, check_sizes
from dovetail_infer.run.loop import Loop
from dovetail_infer.run.prompts import Prompt
from dovetail_infer.run.steps import Steps
from dovetail_infer.run.stream import Stream, Streams
from dovetail_infer.run.submission import Submission, end_ids
from dovetail_infer.sampling import Sampling
from dovetail_infer.schedule.events import Event, Recorder
from dovetail_infer.schedule.plan import Limits
from dovetail_infer.schedule.scheduler import Scheduler
from dovetail_infer.stats import Stats
from dovetail_infer.step.executor import Executor, Program
from dovetail_infer.step.layout import discover
from dovetail_infer.step.memory import DEFAULT_LENGTH, fit_default
from dovetail_infer.types import Decoder, Operations, Tokenizer

_log = logging.getLogger(__name__)


@_elsewhere.engine
class Engine:
    """Samples from a decoder, for many requests at once.

    A request gets the same result alone and beside others, up to float rounding: its draws depend
    on its seed alone. One thread runs the steps; all methods may be called from any thread.

    Args:
        model: A decoder, see `Decoder`. Its arrays are used as they are: quantized, sharded, in any
            dtype. `update_weights` replaces them.
        tokenizer: For text prompts and text. None: token ids alone.
        eos_ids: Ids that end a completion, such as those that a chat model's directory names.
            None: the tokenizer's `eos_id`.
        operations: The hot operations. The module `dovetail_kernels` has fast ones.
        kv_dtype: Dtype of the cache. Default: that of the model's keys, but float32 for bfloat16
            on a CPU with jax before 0.12, where each write would copy the cache.
        kv_bytes: Size of the cache. Default: 90 % of the free memory of an accelerator after
            weights and programs, and 25 % of the free memory of a CPU.
        page_size: Tokens per page.
        step_tokens: Largest number of tokens of a step, prompts and outputs together.
        prefill_tokens: Largest number of prompt tokens of a step in which other requests draw
            tokens, so that a long prompt does not hold them up. None: `step_tokens`.
        max_rows: Largest number of requests that run at once.
        max_length: Largest number of tokens of a request, prompt and output together. Default:
            4096, or less if the cache is smaller.
        max_queue: Largest number of waiting streams. Other calls have a queue of the same size.
        prefix_cache: Keep pages of finished requests for prompts that begin alike.
        max_logprobs: Largest `Sampling.logprobs` and `Sampling.prompt_logprobs`.
        record_experts: Return the experts of each token, for a mixture. The prefix cache is then
            not read.
        adapters: Number of LoRA adapters of a model of `dovetail_models.lora.stack`. They have the
            ids 0 to `adapters` - 1, see `load_adapter`.
        invariant: On a CPU, give a request the same bits whatever else runs: alone or in company,
            for any chunks of its prompt, after preemptions, and from cached prefixes. All steps
            then have one size, so each costs as much as the largest. It holds for one machine,
            one version of JAX and one set of sizes.
        overlap: Read the results of a step while the next one runs. False only changes the time.
        events: Called with each event of the scheduler, a dict of plain values, in the engine's
            thread. `dovetail_infer.schedule.events` describes and replays them. If it raises, the
            error is logged, and no more events come.

    Raises:
        ValueError: The model has an attention of its own, an option is out of range, the only id
            that ends a completion is not the model's, or not even one request of `max_length` fits
            the memory.
        TypeError: An argument has another type.

    Example:

        >>> from flax import nnx
        >>> from dovetail_infer import Engine, Sampling
        >>> from dovetail_infer.testing import ByteTokenizer, TinyDecoder
        >>> with Engine(TinyDecoder(rngs=nnx.Rngs(0)), tokenizer=ByteTokenizer()) as engine:
        ...     sampling = Sampling(max_tokens=4, ignore_eos=True)
        ...     completions = engine.generate(["Hello", "Hi"], sampling)
        >>> [len(completion.tokens) for completion in completions]
        [4, 4]
    """

    @jax.transfer_guard("allow")
    def __init__(
        self,
        model: Decoder,
        *,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] | None = None,
        operations: Operations = reference,
        kv_dtype: DTypeLike | None = None,
        kv_bytes: int | None = None,
        page_size: int = 16,
        step_tokens: int = 2048,
        prefill_tokens: int | None = None,
        max_rows: int = 64,
        max_length: int | None = None,
        max_queue: int = 256,
        prefix_cache: bool = True,
        max_logprobs: int = 20,
        record_experts: bool = False,
        adapters: int = 0,
        invariant: bool = False,
        overlap: bool = True,
        events: Callable[[Event], None] | None = None,
    ):
        length = DEFAULT_LENGTH if max_length is None else max_length
        sizes = {"page_size": page_size, "step_tokens": step_tokens, "max_rows": max_rows}
        capped = {} if prefill_tokens is None else {"prefill_tokens": prefill_tokens}
        check_sizes(**sizes, **capped, max_length=length, max_queue=max_queue)
        check_sizes(least=0, max_logprobs=max_logprobs, adapters=adapters)
        check_model(model)
        features: dict[str, Any] = {"record_experts": record_experts, "adapters": adapters}
        layout = discover(model, max_length=length, kv_dtype=kv_dtype, **features)
        ends = end_ids(eos_ids, tokenizer=tokenizer, vocab_size=layout.vocab_size)
        fit = fit_default(model, max_length, layout=layout, kv_bytes=kv_bytes, **sizes)
        _log.info("memory of the engine:\n%s", fit)
        sizes |= {"step_tokens": min(step_tokens, max_rows * fit.max_length), **capped}
        limits = Limits(
            max_length=fit.max_length, groups=fit.limits, prefix_cache=prefix_cache, **sizes
        )
        step: dict[str, Any] = {"operations": operations, "layout": layout, "limits": limits}
        step |= {"max_logprobs": max_logprobs, "adapters": adapters, "invariant": invariant}
        self._executor = executor = Executor(model, **step)
        scheduler = Scheduler(limits, record=None if events is None else Recorder(events))
        loaded = Adapters(adapters)
        steps = Steps(
            scheduler, executor, adapters=loaded, record_experts=record_experts, overlap=overlap
        )
        self.vocab_size, self.max_length, self.fit = layout.vocab_size, fit.max_length, fit
        self._steps, self._loop = steps, Loop(steps, max_queue=max_queue, ends=executor.stop)
        weakref.finalize(self, self._loop.close)
        self._submission = Submission(
            loop=self._loop,
            rules=executor.rules,
            tokenizer=tokenizer,
            eos_ids=ends,
            vocab_size=layout.vocab_size,
            max_length=fit.max_length,
            max_logprobs=max_logprobs,
            adapters=loaded,
            record_experts=record_experts,
        )

    @property
    def max_queue(self) -> int:
        """Largest number of waiting streams, and of streams that begin together."""
        return self._loop.max_queue

    def warmup(self, *, wait: bool = True) -> list[Program]:
        """Compiles every program, so that no request waits for one.

        Args:
            wait: False compiles a few that can run every step, and the others while requests run,
                which are slower until then. An engine with `invariant` always waits.

        Returns:
            The compiled programs.
        """
        return self._loop.call(self._executor.compile if wait else self._executor.compile_few)

    @_elsewhere.generate
    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling | Sequence[Sampling] | None = None
    ) -> list[Completion]:
        """Completes prompts, as many at once as fit.

        Args:
            prompts: Texts or token ids. There may be more than the queue holds.
            sampling: Options of all prompts, or of each. Default: `Sampling()`. With a seed for
                all, prompt i has `fold_seed(seed, prompt=i)`.

        Returns:
            A completion of each prompt, in order.

        Raises:
            ValueError: A prompt or an option is not possible; nothing has been computed then.
            RuntimeError: The engine is closed.
        """
        ids = self._submission.prompts(prompts)
        return self._submission.run(ids, self._submission.options(sampling, len(ids)))

    @_elsewhere.sample
    def sample(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling | None = None,
        *,
        n: int,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        stop_token_ids: Sequence[int] | None = None,
        kept: bool | None = None,
        seed: int | None = None,
    ) -> list[list[Completion]]:
        """Draws n completions of each prompt, for reinforcement learning.

        Args:
            prompts: Texts or token ids.
            sampling: Options of all. Default: `Sampling()`.
            n: Completions of each prompt. They share the pages of the prompt.
            max_tokens: Replaces that of `sampling`, here and below. None: that of `sampling`.
            temperature: Divides the logits.
            top_k: Keeps the k largest logits.
            top_p: Keeps the most likely tokens.
            min_p: Keeps tokens by their likelihood.
            stop_token_ids: Ids that end a completion.
            kept: Return the ids that the filters kept.
            seed: Completion j of prompt i has the seed `fold_seed(seed, prompt=i, completion=j)`.
                None here and in `sampling`: a new seed for each completion.

        Returns:
            The n completions of each prompt.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, got n={n}. Use n=1 for one completion each.")
        given = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "stop_token_ids": stop_token_ids,
            "kept": kept,
            "seed": seed,
        }
        plain = dataclasses.replace(
            self._submission.option(sampling), **{k: v for k, v in given.items() if v is not None}
        )
        self._submission.check(plain)
        ids = [ids for ids in self._submission.prompts(prompts) for _ in range(n)]
        options = self._submission.seeded(plain, len(ids), each=n)
        flat = self._submission.run(ids, options)
        return [flat[i : i + n] for i in range(0, len(flat), n)]

    def score(self, prompts: Sequence[Prompt]) -> list[Float32[np.ndarray, " T1"]]:
        """Computes log p of each token of each text given those before it.

        Args:
            prompts: Texts or token ids, of at least two tokens.

        Returns:
            The log-probabilities of all tokens but the first, of each prompt.
        """
        return self._submission.score(prompts)

    @_elsewhere.stream
    def stream(self, prompt: Prompt, sampling: Sampling | None = None) -> Stream:
        """Returns a stream of one completion. The request begins with its block.

        Entering the block raises `QueueFull` if the queue has no place.

        Args:
            prompt: Text or token ids.
            sampling: Options. Default: `Sampling()`.
        """
        (ids,) = self._submission.prompts([prompt])
        option = self._submission.option(sampling)
        return Stream(self._submission.source([ids], [option], engine=self))

    @_elsewhere.streams
    def streams(
        self, prompts: Sequence[Prompt], sampling: Sampling | None = None, *, n: int = 1
    ) -> Streams:
        """Returns n streams of each prompt, which are read as one. They begin with their block.

        Entering the block raises `QueueFull` if the queue has not a place for each; none begins
        then. Leaving it early aborts all.

        Args:
            prompts: Texts or token ids.
            sampling: Options of all. Default: `Sampling()`. With a seed, completion j of prompt i
                has `fold_seed(seed, prompt=i, completion=j)`.
            n: Completions of each prompt. They share the pages of the prompt.
        """
        check_sizes(n=n)
        ids = [ids for ids in self._submission.prompts(prompts) for _ in range(n)]
        options = self._submission.seeded(self._submission.option(sampling), len(ids), each=n)
        return Streams(self._submission.source(ids, options, engine=self))

    @_elsewhere.update_weights
    def update_weights(
        self, params: Any, *, version: int | None = None, adapter: int | None = None
    ) -> None:
        """Replaces weights between two steps.

        The arrays are copied, so a training step may donate them afterwards. Requests that run with
        them go on with the new weights from the tokens that they have, and their cached prefixes
        are forgotten. An update of one adapter leaves all other requests and prefixes alone.

        Args:
            params: A model, an `nnx.State`, nested dicts, or a dict by dotted names: all parameters
                or a part, such as LoRA adapters or the leaves of quantized weights. With `adapter`,
                as for `load_adapter`.
            version: A number above that of the present weights, which begin with 0: with `adapter`
                above those of the base and of this adapter, else above all. None: the next.
            adapter: Id of the adapter to replace. None: all that `params` has.

        Raises:
            ValueError: A name, shape, version or id is wrong. The weights are unchanged then.
        """

        def update() -> None:
            self._check_adapter(adapter)
            self._steps.update_weights(params, version=version, adapter=adapter)

        self._loop.call(update)

    def load_adapter(self, params: Any) -> int:
        """Loads an adapter while requests run, into a place that `unload_adapter` freed.

        Nothing is compiled for it, and no running request or cached prefix is touched.

        Args:
            params: A stack of the adapter alone, as `dovetail_models.lora.stack(base, [adapter])`
                of a PEFT directory, or its arrays by dotted names. Its rank may be lower than that
                of the engine's stack, and layers may lack it. Other arrays are not read.

        Returns:
            Its id for `Sampling.adapter`, which no other adapter had or will have.

        Raises:
            ValueError: No place is free, or the adapter does not fit. Nothing has changed then.
        """
        return self._loop.call(lambda: self._steps.load_adapter(params))

    def unload_adapter(self, adapter: int) -> None:
        """Refuses an adapter to new requests, waits for those that have it, and frees its place.

        Raises:
            ValueError: No such adapter is loaded.
            RuntimeError: The engine is paused while a request has the adapter.
        """

        def unload() -> threading.Event:
            self._check_adapter(adapter)
            return self._steps.unload_adapter(adapter)

        self._loop.call(unload).wait()

    def _check_adapter(self, adapter: int | None) -> None:
        if adapter is not None:
            self._submission.check(Sampling(adapter=adapter))

    def pause(self) -> None:
        """Waits for the step on the device, and starts no more until `resume`.

        Requests wait meanwhile, new ones too. Their deadlines go on, and they can be aborted.
        """
        self._loop.call(self._steps.pause)

    def sleep(self) -> None:
        """Pauses and frees the memory of the device, for example for a training step.

        The cache is forgotten. Weights move to the host, if the device is not a CPU. Running
        requests are computed again from their tokens after `resume`.
        """
        self._loop.call(self._steps.sleep)

    def resume(self) -> None:
        """Goes on after `pause` or `sleep`."""
        self._loop.call(self._steps.resume)

    def admit(self) -> None:
        """Raises what a stream would raise now: `QueueFull`, or the error of a closed engine."""
        self._loop.admit()

    def stats(self) -> Stats:
        """Returns counters, and the present numbers of requests and pages."""
        return self._loop.stats()

    def close(self) -> None:
        """Aborts all requests and frees the cache. Leaving a `with` block does it too."""
        self._loop.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
