# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Products with 4096 x 4096 codes at 1 to 257 rows: ours, float32, Qwix's own.

Calls of all contenders take turns, so that weights come from memory as they do in a model, whose
other layers have been read since. Float32 holds its weights in the order, [K, N] or [N, K], that
XLA multiplies faster. `temp_bytes` are the call's temporaries, `gb_per_s` its codes over its least
wall time, `limit_gb_per_s` the machine's with all cores reading.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import qwix

from dovetail_quant.codes.codes import dequantize, nbytes, quantize
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.choose import Auto, choose
from dovetail_quant.testing import bound
from measure import Cost, cost, report, rounds

K = N = 4096
ROWS = (1, 2, 8, 64, 257)
REPEATS = 15
SPECS = {
    "int8": Spec(),
    "int8 by 128": Spec(group=128),
    "int4 by 128": Spec(weight="int4", group=128),
    "nf4 by 64": Spec(weight="nf4", group=64),
    "fp8": Spec(weight="fp8"),
    "w8a8": Spec(act="int8"),
    "w4a8 by 128": Spec(weight="int4", group=128, act="int8"),
}
Call = Callable[[], object]


def read_gb_per_s() -> float:
    """The best of a few passes of all cores over arrays that no cache holds, by their maximum."""
    arrays = [np.ones(2**27, np.float32) for _ in range(os.cpu_count() or 1)]
    with ThreadPoolExecutor(len(arrays)) as pool:

        def once() -> float:
            begin = time.perf_counter()
            list(pool.map(np.max, arrays))
            return time.perf_counter() - begin

        return sum(a.nbytes for a in arrays) / min(once() for _ in range(5)) / 1e9


def compiled(f: Callable[..., jax.Array], *arguments: object) -> tuple[Call, int, float]:
    """The call, the bytes of its temporaries, and the seconds of its compilation."""
    begin = time.perf_counter()
    program = jax.jit(f).lower(*arguments).compile()
    seconds = time.perf_counter() - begin
    temp = program.memory_analysis().temp_size_in_bytes
    return lambda: program(*arguments).block_until_ready(), temp, seconds


def float32(x: jax.Array, w: jax.Array) -> Call:
    """The faster of both orders of the weights."""
    calls = [
        compiled(jnp.matmul, x, w)[0],
        compiled(lambda x, w: jnp.einsum("rk,nk->rn", x, w), x, w.T.copy())[0],
    ]
    costs = rounds({str(i): (lambda c=c: cost(c)) for i, c in enumerate(calls)}, repeats=5)
    return min(enumerate(calls), key=lambda one: min(c.wall_s for c in costs[str(one[0])]))[1]


def contenders(rows: int) -> tuple[dict[str, tuple[Call, int, float, int]], dict[str, Call]]:
    """(ours by name: call, temporary bytes, compile seconds, bytes of codes), peers by name."""
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.standard_normal((K, N), np.float32))
    x = rng.standard_normal((rows, K)).astype(np.float32)
    held, found = jnp.asarray(x), {}
    peers = {"jax float32": float32(held, w)}
    peers["jax float32 again"] = peers["jax float32"]
    for name, spec in SPECS.items():
        codes, auto = quantize(w, spec), Auto(spec=spec)
        call, temp, seconds = compiled(auto, held, auto.prepare(codes))
        exact = np.asarray(dequantize(codes)).astype(np.float64)
        if not (abs(np.asarray(call()) - x @ exact) <= bound(x, exact, act=spec.act)).all():
            raise SystemExit(f"{name} is not the product")
        found[name] = call, temp, seconds, nbytes(codes)
        if spec.weight in ("int8", "int4") and spec.act is None:
            peers[f"qwix {name}"] = compiled(qwix.dot, held, codes)[0]
    return found, peers


def main() -> None:
    limit = read_gb_per_s()
    for rows in ROWS:
        found, peers = contenders(rows)
        calls = {name: one[0] for name, one in found.items()} | peers
        results = rounds({n: (lambda c=c: cost(c)) for n, c in calls.items()}, repeats=REPEATS)
        for name, (_, temp, seconds, size) in found.items():
            chosen = choose(SPECS[name], platform="cpu", rows=rows, inputs=K).product
            for peer in ("jax float32", f"qwix {name}"):
                if peer in peers:
                    conditions = {
                        "product": chosen,
                        "temp_bytes": temp,
                        "compile_s": seconds,
                        "code_bytes": size,
                        "limit_gb_per_s": limit,
                    }
                    line(f"rows={rows} {name} against {peer}", results, (name, peer), conditions)


def line(
    case: str, results: dict[str, list[Cost]], names: tuple[str, str], conditions: dict
) -> None:
    """One case: ours and the peer of `names`."""
    ours, theirs = (results[name] for name in names)
    again = results["jax float32 again"] if names[1] == "jax float32" else None
    wall = [r.wall_s for r in ours]
    report(
        f"{K}x{N} {case}",
        metric="wall_s",
        unit="s",
        values=wall,
        peer=names[1].split()[0],
        peer_values=[r.wall_s for r in theirs],
        peer_again=[r.wall_s for r in again] if again else None,
        cpu_s=sorted(r.cpu_s for r in ours)[len(ours) // 2],
        peer_cpu_s=sorted(r.cpu_s for r in theirs)[len(theirs) // 2],
        gb_per_s=conditions["code_bytes"] / min(wall) / 1e9,
        **conditions,
    )


if __name__ == "__main__":
    main()
