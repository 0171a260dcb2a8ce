# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The shared layout of packed weights under both packages: int4 by 128 at 4096 x 4096.

Both multiply the same arrays, rows of outputs [N, K / 2], a block at a time.
The peers are the other package's product and the float product of the same weights. The metric is
CPU time: other processes take less part in it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels import quantized_matmul
from dovetail_quant.codes.codes import dequantize, quantize
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.blocked import Blocked
from dovetail_quant.testing import bound
from measure import cost, report, rounds

K = N = 4096
ROWS, REPEATS, SPEC = (1, 16, 64), 15, Spec(weight="int4", group=128)


def main() -> None:
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.standard_normal((K, N), np.float32))
    codes = quantize(w, SPEC)
    packed, whole = Blocked().prepare(codes), dequantize(codes)
    exact = np.asarray(whole).astype(np.float64)
    for count in ROWS:
        x = jnp.asarray(rng.standard_normal((count, K), np.float32))
        calls = {
            "quant, blocked": (Blocked(), (x, packed)),
            "kernels, blocks": (functools.partial(quantized_matmul, impl="blocks"), (x, packed)),
            "float32": (jnp.matmul, (x, whole)),
        }
        calls["float32 again"] = calls["float32"]
        programs = {}
        for name, (function, arguments) in calls.items():
            program = jax.jit(function).lower(*arguments).compile()
            call = functools.partial(
                lambda program, arguments: program(*arguments).block_until_ready(),
                program,
                arguments,
            )
            if not (abs(np.asarray(call()) - x @ exact) <= 2 * bound(np.asarray(x), exact)).all():
                raise SystemExit(f"{name} is not the product")
            programs[name] = call
        results = rounds({n: (lambda c=c: cost(c)) for n, c in programs.items()}, repeats=REPEATS)
        cpu = {name: [c.cpu_s for c in costs] for name, costs in results.items()}
        pairs = ("quant, blocked", "float32"), ("kernels, blocks", "float32")
        for name, peer in (*pairs, ("kernels, blocks", "quant, blocked")):
            report(
                f"{K}x{N} int4 by 128, rows={count}: {name} against {peer}",
                metric="cpu_s",
                unit="s",
                values=cpu[name],
                peer=peer,
                peer_values=cpu[peer],
                peer_again=cpu["float32 again"] if peer == "float32" else None,
            )


if __name__ == "__main__":
    main()
