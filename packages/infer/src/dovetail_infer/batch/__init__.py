# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A file of prompts to a file of results. A killed run resumes.

    >>> import json, pathlib
    >>> from flax import nnx
    >>> from dovetail_infer import Engine, Sampling, batch
    >>> from dovetail_infer.testing import ByteTokenizer, TinyDecoder
    >>> prompts, out = pathlib.Path("prompts.jsonl"), pathlib.Path("results.jsonl")
    >>> _ = prompts.write_text('{"prompt": "a"}\\n{"prompt": "b", "max_tokens": 2}\\n')
    >>> requests = batch.read(prompts, Sampling(max_tokens=4, seed=0), model="tiny")
    >>> engine = Engine(TinyDecoder(rngs=nnx.Rngs(0)), tokenizer=ByteTokenizer(), max_length=64)
    >>> with engine, batch.Results(out, requests) as results:
    ...     for pairs in batch.generate(engine, results):
    ...         print(sum(len(completion.tokens) for _, completion in pairs), "tokens")
    6 tokens
    >>> [json.loads(line)["prompt"] for line in out.read_text().splitlines()]
    ['a', 'b']

The same program generates what is missing, also after a kill at any moment.
"""

from dovetail_infer.batch.generate import generate
from dovetail_infer.batch.requests import RefusedError, Request, read
from dovetail_infer.batch.results import Results

__all__ = ["RefusedError", "Request", "Results", "generate", "read"]
