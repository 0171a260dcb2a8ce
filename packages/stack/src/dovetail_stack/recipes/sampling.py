# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Samples of a model during training: a hook of the trainer."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flax import nnx

from dovetail_data import Tokenizer
from dovetail_infer import Engine, Sampling
from dovetail_models import Decoder
from dovetail_stack.processes import gathered, is_first
from dovetail_stack.recipes.engine import engine
from dovetail_train import State, Trainer


class Samples:
    """A hook that appends {"step", "prompt", "text"} to a JSONL file.

    The text is the greedy continuation of `prompt` by the current parameters. A run that resumes
    from before a sample writes it again. One engine serves all samples: its programs compile at the
    first, and later ones copy the weights. Between samples it sleeps, without a cache.

    Args:
        file: JSONL file.
        tokenizer: The model's tokenizer.
        prompt: Text to continue.
        every: Steps between samples.
        decoder: Returns the decoder of the trained module.
        max_tokens: Largest number of new tokens.
    """

    def __init__(
        self,
        file: Path,
        tokenizer: Tokenizer,
        *,
        prompt: str,
        every: int,
        decoder: Callable[[Any], Decoder] = lambda model: model,
        max_tokens: int = 48,
    ) -> None:
        if every < 1 or max_tokens < 1:
            raise ValueError(
                f"every and max_tokens must be at least 1, got every={every}, "
                f"max_tokens={max_tokens}: write for example every=100, max_tokens=48"
            )
        self.every = every
        self._file, self._tokenizer, self._prompt = file, tokenizer, prompt
        self._decoder, self._max_tokens = decoder, max_tokens
        self._engine: Engine | None = None

    def __call__(self, trainer: Trainer, state: State, step: int) -> Mapping[str, float]:
        model = gathered(self._decoder(trainer.model(state)))
        if not is_first():
            return {}
        text = self._continued(model)
        line = {"step": step, "prompt": self._prompt, "text": text}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return {}

    def _continued(self, model: Decoder) -> str:
        """Returns the continuation by the weights of `model`."""
        if self._engine is None:
            self._engine = engine(model, tokenizer=self._tokenizer, max_rows=1)
        self._engine.resume()
        version = self._engine.stats().version + 1
        self._engine.update_weights(nnx.state(model), version=version)
        sampling = Sampling(max_tokens=self._max_tokens, temperature=0)
        (completion,) = self._engine.generate([self._prompt], sampling)
        self._engine.sleep()
        if completion.error is not None:
            raise ValueError(completion.error)
        return completion.text
