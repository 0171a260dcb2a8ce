# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""1,000 calls as of an engine, eager and jitted mixed, in one process; prints one JSON object.

`compilations`: of XLA, after the first 200 calls. `live_arrays`: after 200 and after 1,000 calls.
`grown_bytes`: of the resident set in between. `operations`: calls of each operation.

Each step is one of an engine: values change (tokens, lengths, keys, slots), shapes do not.
"""

import gc
import json
import resource
from collections import Counter
from pathlib import Path

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

from dovetail_kernels import (
    attention,
    grouped_matmul,
    linear_logprobs,
    pack_weights,
    paged_attention,
    paged_write,
    quantized_matmul,
    sample,
    warp_logits,
)

CALLS, WARM = 1000, 200
ROWS, HEADS, KV_HEADS, WIDTH, VOCABULARY, EXPERTS = 3, 4, 2, 8, 41, 3
PAGE, COLUMNS = 4, 32  # keys of a page, pages of a request

rng = np.random.default_rng(0)
compilations, calls = [], Counter()


def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


HEAD = normal(HEADS * WIDTH, VOCABULARY)
WEIGHTS = normal(EXPERTS, HEADS * WIDTH, HEADS * WIDTH)
PACKED = pack_weights(normal(HEADS * WIDTH, VOCABULARY), bits=8)
PREFIX = normal(1, 6, KV_HEADS, WIDTH)
TABLE = np.arange(ROWS * COLUMNS, dtype=np.int32).reshape(ROWS, COLUMNS)
STARTS = np.arange(ROWS + 1, dtype=np.int32)


def listen(event, duration, **of):
    if event == "/jax/core/compile/backend_compile_duration":
        compilations.append(event)


def jitted_decode(q, pages, k, v, slots, lengths):
    pages = paged_write(pages, k, v, slots=slots)
    out = paged_attention(q, pages, page_table=TABLE, kv_lengths=lengths, q_starts=STARTS)
    return out, pages


def jitted_head(hidden, bits, labels):
    logits = quantized_matmul(hidden, PACKED)
    keys = jax.random.wrap_key_data(bits)
    tokens = sample(logits, keys=keys, temperature=0.8, top_k=7, top_p=0.9)
    return tokens, linear_logprobs(hidden, HEAD, labels)


JITTED = jax.jit(jitted_decode), jax.jit(jitted_head)


def step(number, pages):
    """Runs one step of decoding, eager and jitted in turn, and returns the pages."""
    eager = number % 2 == 0
    length = 1 + number % (PAGE * COLUMNS)
    q, k, v = (normal(ROWS, heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS))
    lengths = np.full(ROWS, length, np.int32)
    at = length - 1
    slots = TABLE[:, at // PAGE] * PAGE + at % PAGE
    decode, head = (jitted_decode, jitted_head) if eager else JITTED
    out, pages = decode(q, pages, k, v, slots, lengths)
    hidden = out.reshape(ROWS, -1)
    sizes = rng.multinomial(ROWS, [1 / EXPERTS] * EXPERTS).astype(np.int32)
    hidden = hidden + grouped_matmul(hidden, WEIGHTS, sizes)
    bits = rng.integers(0, 2**32, (ROWS, 2), np.uint32)
    tokens, logprobs = head(hidden, bits, rng.integers(0, VOCABULARY, ROWS).astype(np.int32))
    warped = warp_logits(quantized_matmul(hidden, PACKED), temperature=0.7, top_k=5)
    prefill = attention(PREFIX.repeat(2, 2), PREFIX, PREFIX, causal=True)
    values = jax.device_get((tokens, logprobs, warped, prefill))
    assert np.isfinite(values[1].logprob).all()
    calls.update(["paged_write", "paged_attention", "grouped_matmul", "sample", "attention"])
    calls.update(["linear_logprobs", "warp_logits", "quantized_matmul", "quantized_matmul"])
    return pages


def resident_bytes():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def main():
    jax.monitoring.register_event_duration_secs_listener(listen)
    pages = jnp.zeros((ROWS * COLUMNS, 2, PAGE, KV_HEADS, WIDTH))
    number, states = 0, []
    for limit in (WARM, CALLS):
        while calls.total() < limit:
            pages = step(number, pages)
            number += 1
        states.append((len(compilations), len(jax.live_arrays()), resident_bytes()))
    (before, few, small), (after, many, large) = states
    result = {
        "compilations": after - before,
        "warm_compilations": before,
        "live_arrays": [few, many],
        "grown_bytes": large - small,
        "operations": dict(calls),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
