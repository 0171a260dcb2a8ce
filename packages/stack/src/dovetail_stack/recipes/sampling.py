# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Samples of a model during training: a hook of the trainer."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail_data import Tokenizer
from dovetail_models import Decoder
from dovetail_stack.processes import gathered, is_first
from dovetail_stack.recipes.generation import generate
from dovetail_train import State, Trainer


class Samples:
    """A hook that appends {"step", "prompt", "text"} to a JSONL file.

    The text is the greedy continuation of `prompt` by the current parameters. A run that resumes
    from before a sample writes it again.

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

    def __call__(self, trainer: Trainer, state: State, step: int) -> Mapping[str, float]:
        model = gathered(self._decoder(trainer.model(state)))
        if not is_first():
            return {}
        pieces = generate(model, self._tokenizer, self._prompt, max_tokens=self._max_tokens)
        line = {"step": step, "prompt": self._prompt, "text": "".join(pieces)}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return {}
