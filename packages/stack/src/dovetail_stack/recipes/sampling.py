# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Samples of a model during training: a hook of the trainer, and the sampling of a directory."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from flax import nnx
from jaxtyping import Int

from dovetail_data import Tokenizer
from dovetail_infer import Engine, Sampling
from dovetail_models import Decoder, generation_defaults
from dovetail_stack.processes import is_first
from dovetail_stack.recipes.engine import end_ids, engine
from dovetail_train import State, Trainer, gather_module

BELOW = "\n\n--- in the data:\n"  # a sample, the text of the data
Prompt: TypeAlias = str | Sequence[int] | Int[np.ndarray, " T"]  # a text, or its ids


class Samples:
    """A hook that writes texts "sample 1", "sample 2" and so on, one for each prompt.

    A text is a prompt and its continuation by the current parameters. A run that resumes
    from before a sample writes it again. One engine serves all samples: its programs compile at the
    first, and later ones copy the weights. Between samples it sleeps, without a cache.

    Args:
        write_text: Receives step, name and text, as `dovetail_runs.Launch.write_text`.
        tokenizer: The model's tokenizer.
        prompts: Texts to continue, or their ids. Each is a series of its own.
        every: Steps between samples.
        decoder: Returns the decoder of the trained module.
        max_tokens: Largest number of new tokens.
        directory: Directory that names the ids that end a continuation. None, or it names none:
            the tokenizer's end of text.
        directory_sampling: Sample as the directory suggests. False: take the likeliest tokens.
        stop_token_ids: Ids that end a continuation too.
        wanted: Text of the data for each prompt, kept below the sample.
    """

    def __init__(
        self,
        write_text: Callable[[int, str, str], None],
        tokenizer: Tokenizer,
        *,
        prompts: Sequence[Prompt],
        every: int,
        decoder: Callable[[Any], Decoder] = lambda model: model,
        max_tokens: int = 48,
        directory: Path | None = None,
        directory_sampling: bool = False,
        stop_token_ids: Sequence[int] = (),
        wanted: Sequence[str] | None = None,
    ) -> None:
        if every < 1 or max_tokens < 1:
            raise ValueError(
                f"every and max_tokens must be at least 1, got every={every}, "
                f"max_tokens={max_tokens}: write for example every=100, max_tokens=48"
            )
        self.every = every
        self._write_text, self._tokenizer, self._prompts = write_text, tokenizer, list(prompts)
        self._decoder, self._wanted, self._directory = decoder, wanted, directory
        options: dict[str, Any] = {"max_tokens": max_tokens, "stop_token_ids": [*stop_token_ids]}
        if not directory_sampling:
            self._sampling = Sampling(temperature=0, **options)
        elif directory is not None:
            self._sampling = sampling_of(directory, seed=0, **options)
        else:
            raise ValueError(
                "directory_sampling needs a directory that suggests it, got directory=None: pass "
                "directory=, or leave directory_sampling= out"
            )
        self._engine: Engine | None = None

    def __call__(self, trainer: Trainer, state: State, step: int) -> Mapping[str, float]:
        self.write(trainer.model(state), step)
        return {}

    def write(self, module: nnx.Module, step: int) -> None:
        """Writes the samples of a module that had `step` updates. Every process calls it."""
        model = gather_module(self._decoder(module))
        if not is_first():
            return
        for i, text in enumerate(self._continued(model)):
            prompt = self._prompts[i]
            shown = prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
            below = "" if self._wanted is None else f"{BELOW}{self._wanted[i]}"
            self._write_text(step, f"sample {i + 1}", f"{shown}{text}{below}")

    def close(self) -> None:
        """Ends the engine. Later samples begin another one."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _continued(self, model: Decoder) -> list[str]:
        """Returns the continuations by the weights of `model`."""
        if self._engine is None:
            named, size = self._directory, model.config.vocab_size
            self._engine = engine(
                model,
                tokenizer=self._tokenizer,
                eos_ids=None if named is None else end_ids(named, size),
                max_rows=len(self._prompts),
            )
        self._engine.resume()
        version = self._engine.stats().version + 1
        self._engine.update_weights(nnx.state(model), version=version)
        completions = self._engine.generate(self._prompts, self._sampling)
        self._engine.sleep()
        for completion in completions:
            if completion.error is not None:
                raise ValueError(completion.error)
        return [completion.text for completion in completions]


def sampling_of(directory: Path, **options: Any) -> Sampling:
    """Returns the sampling that a directory suggests: the likeliest tokens if it suggests none.

    Options of `dovetail_infer.Sampling` replace those of the directory. Raises ValueError for what
    is not possible.
    """
    theirs = generation_defaults(directory).sampling()
    try:
        Sampling(**theirs)
    except ValueError as error:
        raise ValueError(
            f"generation_config.json must suggest a sampling that is possible, got {theirs} in "
            f"{str(directory)!r} ({error}): correct the file, or leave directory_sampling= out"
        ) from error
    return Sampling(**{**theirs, **options})
