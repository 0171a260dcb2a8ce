# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An LLM inference engine for any JAX decoder: paged cache, continuous batching, exact sampling.

    >>> from flax import nnx
    >>> from dovetail_infer import Engine, Sampling
    >>> from dovetail_infer.testing import ByteTokenizer, TinyDecoder
    >>> model = TinyDecoder(rngs=nnx.Rngs(0))
    >>> with Engine(model, tokenizer=ByteTokenizer(), max_length=128) as engine:
    ...     (completion,) = engine.generate(["Hello"], Sampling(max_tokens=8, temperature=0))
    >>> len(completion.tokens), completion.finish_reason
    (8, 'length')

- Engine: `Engine`, `Stream`, `Streams`, `QueueFull`, `Stats`
- Requests and results: `Sampling`, `fold_seed`, `Completion`, `Times`, `Tokens`, `TopLogprobs`,
  `Kept`
- Files of prompts to files of results: `batch`
- Interfaces: `Decoder`, `Operations`, `Tokenizer`, `reference`

`dovetail_infer.schedule` has the scheduler alone, its event log and a simulator for capacity
planning. `dovetail_infer.server` answers clients of OpenAI's API, with the extra "server".
`dovetail_infer.testing.check_decoder` checks a decoder of your own.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_infer import batch, reference
from dovetail_infer._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_infer._suggestions import public_names as _public_names
from dovetail_infer.completion import Completion, Kept, QueueFull, Times, Tokens, TopLogprobs
from dovetail_infer.engine import Engine
from dovetail_infer.run.stream import Stream, Streams
from dovetail_infer.sampling import Sampling, fold_seed
from dovetail_infer.stats import PageStats, Stats
from dovetail_infer.types import Decoder, Operations, Tokenizer

__all__ = [  # noqa: RUF022, by topic
    # Engine
    "Engine",
    "Stream",
    "Streams",
    "QueueFull",
    "Stats",
    "PageStats",
    # Requests and results
    "Sampling",
    "fold_seed",
    "Completion",
    "Times",
    "Tokens",
    "TopLogprobs",
    "Kept",
    # Files of prompts
    "batch",
    # Interfaces
    "Decoder",
    "Operations",
    "Tokenizer",
    "reference",
]

__version__ = _version("dovetail-infer")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(
        __name__, __all__, "schedule", "server", "testing", **_ELSEWHERE
    )
