# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: the conformance suites, then timings beside peers."""

from accelerator_step import Step

# Rows of docs/capabilities.md.
_PROVES = {
    "attention cudnn": "attention by cuDNN",
    "attention blocked": "attention, forward and backward",
    "attention mosaic": "attention on the tensor cores of Hopper",
    "loss": "cross-entropy of a head without its logits in memory",
    "grouped": "grouped products of a mixture of experts",
    "paged": "attention over a paged cache",
    "quantized": "products with weights of 8 and 4 bits",
    "routing": "routing of a mixture of experts",
}

# Attention in a step for each implementation: its cases are many, and compile slowly.
_FIRST = ("attention cudnn", "attention blocked", "attention mosaic")
_OTHERS = (
    "attention reference",
    "loss",
    "logprobs",
    "grouped",
    "paged",
    "writing",
    "quantized",
    "routing",
)


def _conformance(suite: str, *, order: int) -> Step:
    operation, *impl = suite.split()
    return Step(
        name=f"conformance-{suite.replace(' ', '-')}",
        run="device_conformance:conformance",
        order=order,
        limit_s=300,
        full={"operation": operation, "impls": tuple(impl), "count": None, "seconds": 270.0},
        # Enough cases of a cache for each of its options.
        tiny={
            "operation": operation,
            "impls": tuple(impl),
            "count": 12 if operation == "paged" else 2,
        },
        proves=(_PROVES[suite],) if suite in _PROVES else (),
        timed=False,
    )


def _timing(name: str, *, order: int, full: dict, tiny: dict) -> Step:
    return Step(
        name=name, run=f"device_timings:{name}", order=order, limit_s=180, full=full, tiny=tiny
    )


# Weights and caches are larger than any cache of a GPU, which a chain of calls would read from.
STEPS = (
    *(_conformance(suite, order=10) for suite in _FIRST),
    _timing(
        "attention",
        order=20,
        full={"batch": 2, "length": 8192, "heads": 16, "width": 128, "chain": 20},
        tiny={"batch": 1, "length": 64, "heads": 2, "width": 64, "chain": 2},
    ),
    _timing(
        "packed",
        order=21,
        full={
            "batch": 2,
            "length": 4096,
            "heads": 16,
            "kv_heads": 16,
            "width": 128,
            "chain": 8,
        },
        tiny={"batch": 1, "length": 64, "heads": 2, "kv_heads": 1, "width": 64, "chain": 2},
    ),
    _timing(
        "loss",
        order=22,
        full={
            "cases": ((8192, 4096, 131072, 1), (32768, 768, 50304, 0)),
            "budget": 2**29,
            "chain": 3,
        },
        tiny={"cases": ((32, 16, 200, 1), (32, 16, 200, 0)), "budget": 2**16, "chain": 2},
    ),
    *(_conformance(suite, order=40) for suite in _OTHERS),
    _timing(
        "grouped",
        order=50,
        full={
            "cases": ((8, 8192, 4096, 14336), (64, 16384, 2048, 1408)),
            "chain": 5,
        },
        tiny={"cases": ((4, 64, 16, 24),), "chain": 2},
    ),
    _timing(
        "paged",
        order=51,
        full={"requests": (16, 128), "longest": 8192, "heads": 32, "kv_heads": 8, "chain": 50},
        tiny={"requests": (3,), "longest": 64, "heads": 4, "kv_heads": 2, "chain": 2},
    ),
    _timing(
        "quantized",
        order=52,
        full={"rows": (1, 16, 4096), "width": 16384, "chain": 20},
        tiny={"rows": (1, 4), "width": 128, "chain": 2},
    ),
    Step(
        name="tune",
        run="device_tuning:sweep",
        order=54,
        limit_s=180,
        full={
            "rows": (2, 4096, 16, 128),
            "experts": (64, 16384, 2048, 1408),
            "weights": (64, 4096, 14336),
        },
        tiny={"rows": (1, 64, 2, 64), "experts": (4, 64, 16, 24), "weights": (4, 128, 128)},
        proves=("choice of an implementation by measurement",),
    ),
    _timing(
        "sample",
        order=53,
        full={"rows": (1, 64), "vocabulary": 151_936, "chain": 50},
        tiny={"rows": (2,), "vocabulary": 700, "chain": 2},
    ),
)
