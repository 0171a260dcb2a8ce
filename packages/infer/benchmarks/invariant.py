# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Time of requests with `Engine(invariant=True)` against the same engine without it.

The decoder has 4 layers of width 512. Its engine has 64 places and step_tokens=64: in invariant
mode every step costs as much as one of `step_tokens`, so the least is best. 64 requests fill all
places; 8 leave most of them empty, which invariant mode computes all the same. wall_s is that of
all requests, each with 16 tokens of a prompt and 32 new ones.
"""

import functools
from typing import Any

import numpy as np
from flax import nnx

from dovetail_infer import Engine, Sampling
from dovetail_infer.testing import TinyDecoder
from measure import cost, report, rounds

PLACES, PROMPT, NEW, REPEATS = 64, 16, 32, 9


def main() -> None:
    model = TinyDecoder(vocab_size=1024, embed=512, depth=4, heads=8, kv_heads=4, rngs=nnx.Rngs(0))
    options: dict[str, Any] = {"max_rows": PLACES, "step_tokens": PLACES, "kv_bytes": 2**28}
    options |= {"max_length": PROMPT + NEW, "prefix_cache": False}
    invariant, plain = Engine(model, invariant=True, **options), Engine(model, **options)
    sampling = Sampling(max_tokens=NEW, temperature=0, ignore_eos=True)
    for rows in (PLACES, 8):
        prompts = np.random.default_rng(rows).integers(0, 1024, (rows, PROMPT)).tolist()
        engines = {"invariant": invariant, "plain": plain, "again": plain}
        results = rounds(
            {
                name: functools.partial(cost, functools.partial(engine.generate, prompts, sampling))
                for name, engine in engines.items()
            },
            repeats=REPEATS,
        )
        walls = {name: [c.wall_s for c in costs] for name, costs in results.items()}
        report(
            f"{rows} requests in {PLACES} places",
            metric="wall_s",
            unit="s",
            values=walls["invariant"],
            peer="invariant=False",
            peer_values=walls["plain"],
            peer_again=walls["again"],
        )
    invariant.close()
    plain.close()


if __name__ == "__main__":
    main()
