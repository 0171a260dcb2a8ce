# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random calls of every operation against float64 NumPy, forward and backward.

A trial draws sizes, dtypes and options together, and asks the conformance suite of the operation
(`dovetail_kernels.testing`) for its check: values, gradients, NaN in hidden places. A trial is
`right`, `wrong` or `refused`. Nothing that is drawn may be refused.

`--trials 100` sets the number for each operation, `--seed 1` draws others.
"""

import argparse
import dataclasses
import random
import sys
from collections.abc import Callable
from typing import Any

import jax

from dovetail_kernels import (
    ExpertGroups,
    attention,
    grouped_matmul,
    linear_cross_entropy,
    linear_logprobs,
    paged_attention,
    quantized_matmul,
    route_tokens,
    sample,
)
from dovetail_kernels.testing import attention as attention_suite
from dovetail_kernels.testing import (
    attention_cases,
    grouped,
    loss,
    paged,
    quantized,
    routing,
    sampling,
)
from measure import report

FLOATS = ("float32", "float32", "bfloat16", "float16")


def draw_attention(draw: random.Random, name: str) -> Any:
    causal = draw.random() < 0.5
    sides = draw.randint(0, 40), draw.randint(0, 40)
    window = draw.choice([None, None, 1, draw.randint(2, 40), sides])
    axes = [None, None, "bs", "nts", "bnts", "bt", "n"]
    same = draw.random() < 0.6
    queries = draw.choice([1, draw.randint(1, 300)])
    keys = queries if same else draw.randint(1, 300)
    placed = None if same else "pair" if causal or window is not None else None
    kv_heads = draw.choice([1, 2, 3])
    return attention_cases.Case(
        name=name,
        needs=frozenset(),
        batch=draw.randint(1, 3),
        queries=queries,
        keys=keys,
        heads=kv_heads * draw.choice([1, 2, 5]),
        kv_heads=kv_heads,
        head_dim=draw.choice([4, 7, 8, 16, 33]),
        value_dim=draw.choice([3, 8, 16]),
        dtype=draw.choice(FLOATS),
        causal=causal,
        window=window,
        segments=draw.choice([None, "packed"] if same and queries > 4 else [None, "pair"]),
        positions=placed,
        kv_lengths=draw.random() < 0.4,
        mask=draw.choice(axes),
        bias=draw.choice(axes),
        soft_cap=draw.choice([None, None, 1.5]),
        sinks=draw.random() < 0.3,
        scale=draw.choice([None, None, 0.3]),
        stats=draw.random() < 0.5,
    )


def draw_paged(draw: random.Random, name: str) -> Any:
    lengths = [draw.choice([0, 1, draw.randint(1, 20), draw.randint(1, 400)]) for _ in range(5)]
    lengths = lengths[: draw.randint(1, 5)]
    kv_heads, width = draw.choice([1, 2, 3]), draw.choice([3, 8, 20])
    return paged.Case(
        name=name,
        needs=frozenset(),
        queries=tuple(draw.choice([0, min(1, n), draw.randint(0, n)]) for n in lengths),
        lengths=tuple(lengths),
        heads=kv_heads * draw.choice([1, 2, 4]),
        kv_heads=kv_heads,
        width=width,
        value_width=draw.choice([None, None, draw.randint(1, width)]),
        lse=draw.random() < 0.4,
        pages_dtype=draw.choice([None, None, "int8", "float8_e4m3fn", "float32", "bfloat16"]),
        page_size=draw.choice([1, 4, 5, 16, 130]),
        padding=draw.choice([0, 3]),
        dtype=draw.choice(FLOATS),
        window=draw.choice([None, None, 1, draw.randint(2, 60)]),
        soft_cap=draw.choice([None, None, 0.7]),
        scale=draw.choice([None, 0.9]),
        sinks=draw.random() < 0.3,
    )


def draw_grouped(draw: random.Random, name: str) -> Any:
    sizes = [draw.choice([0, 1, draw.randint(0, 60)]) for _ in range(draw.randint(1, 12))]
    beyond = draw.choice([0, 0, 7])
    return grouped.Case(
        name=name,
        rows=sum(sizes) + beyond,
        sizes=tuple(sizes),
        inner=draw.randint(1, 40),
        outer=draw.randint(1, 40),
        dtype=draw.choice(FLOATS),
        needs=frozenset({"beyond"} if beyond else ()),
    )


def draw_head(draw: random.Random, name: str, options: dict[str, Any]) -> Any:
    wide = draw.choice(["float32", "bfloat16"])
    vocabulary = draw.choice([2, 131, 1000, draw.randint(3, 3000)])
    options |= {"soft_cap": 3.0} if draw.random() < 0.3 else {}
    options |= {"vocab_axis": 0} if draw.random() < 0.4 else {}
    return loss.Case(
        name=name,
        shape=(draw.randint(1, 80), draw.randint(1, 24), vocabulary),
        dtype=wide,
        where=draw.choice(
            ["none", "mask", "weights"] if "temperature" not in options else ["none"]
        ),
        bias=draw.random() < 0.4,
        options=options,
    )


def draw_loss(draw: random.Random, name: str) -> Any:
    options = {"z_loss": draw.choice([0.0, 0.03]), "smoothing": draw.choice([0.0, 0.2])}
    return draw_head(draw, name, {key: value for key, value in options.items() if value})


def draw_logprobs(draw: random.Random, name: str) -> Any:
    return draw_head(draw, name, {"temperature": draw.choice([0.6, 1.0, 1.7])})


def draw_quantized(draw: random.Random, name: str) -> Any:
    bits, groups = draw.choice([4, 8, 8, 16]), draw.choice([1, 1, 3])
    groups = 1 if bits == 16 else groups
    zeros = draw.choice([None, "float32", "int8"]) if bits != 16 else None
    return quantized.Case(
        name=name,
        needs=frozenset(),
        rows=draw.choice([1, 2, draw.randint(3, 60)]),
        inputs=groups * draw.choice([4, 20, 32, 64, 96]),
        outputs=draw.randint(1, 70),
        bits=bits,
        groups=groups,
        zeros=zeros,
        activations=draw.choice([None, None, "int8"]) if bits != 16 else None,
        # float16 ends at 65504, and sums with zero points reach beyond it.
        dtype=draw.choice(FLOATS[:3] if zeros else FLOATS),
    )


def draw_sampling(draw: random.Random, name: str) -> Any:
    options: dict[str, Any] = {"temperature": draw.choice([0.0, 0.3, 1.0, 2.5])}
    if draw.random() < 0.5:
        options["top_k"] = draw.randint(0, 40)
    if draw.random() < 0.5:
        options["top_p"] = draw.choice([0.1, 0.5, 0.93, 1.0])
    if draw.random() < 0.4:
        options["min_p"] = draw.choice([0.0, 0.02, 0.3])
    return sampling.Case(
        name=name,
        options=options,
        rows=draw.randint(1, 4),
        vocabulary=draw.choice([1, 37, 513, draw.randint(2, 2000)]),
        spread=draw.choice([0.5, 1.5, 4.0]),
        shift=draw.choice([0.0, -30.0]),
    )


def draw_routing(draw: random.Random, name: str) -> Any:
    count, k = draw.choice([4, 12, 64]), draw.randint(1, 2)
    options: dict[str, Any] = {"k": k, "score": draw.choice(["softmax", "sigmoid"])}
    options["normalise"] = draw.random() < 0.5
    if draw.random() < 0.4:
        options["groups"] = ExpertGroups(count=2, k=1, score=draw.choice(["max", "top2"]))
    if draw.random() < 0.3:
        options["scale"] = 2.5
    return routing.Case(
        name=name,
        options=options,
        needs=frozenset({"bias"} if draw.random() < 0.4 else ()),
        tokens=draw.randint(1, 90),
        count=count,
    )


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "attention": (draw_attention, attention_suite.check, attention),
    "paged_attention": (draw_paged, paged.check, paged_attention),
    "grouped_matmul": (draw_grouped, grouped.check, grouped_matmul),
    "linear_cross_entropy": (draw_loss, loss.check, linear_cross_entropy),
    "linear_logprobs": (draw_logprobs, loss.check_logprobs, linear_logprobs),
    "quantized_matmul": (draw_quantized, quantized.check, quantized_matmul),
    "route_tokens": (draw_routing, routing.check, route_tokens),
    "sample": (draw_sampling, sampling.check, sample),
}
WITHOUT_GRADIENT = ("paged_attention",)


def outcome(operation: str, case: Any) -> str:
    _, check, function = OPERATIONS[operation]
    options = {"grad": False} if operation in WITHOUT_GRADIENT else {}
    try:
        check(function, case, **options)
    except AssertionError as error:
        print(f"{operation}: {error}\n  {dataclasses.asdict(case)}", file=sys.stderr)
        return "wrong"
    except (ValueError, TypeError, NotImplementedError) as error:
        print(f"{operation}: {error}\n  {dataclasses.asdict(case)}", file=sys.stderr)
        return "refused"
    return "right"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("operations", nargs="*", default=list(OPERATIONS))
    args = parser.parse_args()
    for operation in args.operations:
        draw = random.Random(f"{operation} {args.seed}")
        outcomes = []
        for i in range(args.trials):
            case = OPERATIONS[operation][0](draw, f"trial {i} of seed {args.seed}")
            outcomes.append(outcome(operation, case))
            if i % 20 == 19:
                jax.clear_caches()  # each trial has shapes of its own
        report(
            operation,
            metric="right",
            unit="of the trials",
            values=[outcomes.count("right") / args.trials],
            trials=args.trials,
            wrong=outcomes.count("wrong"),
            refused=outcomes.count("refused"),
            seed=args.seed,
        )


if __name__ == "__main__":
    main()
