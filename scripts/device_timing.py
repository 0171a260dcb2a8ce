# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Time of operations on a device, beside their peers, with the cost of a launch left out.

Each contender is called `chain` times within one compiled program, and the program is timed, in
interleaved rounds. Results of one call are compared first.
"""

import concurrent.futures
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from measure import cost, report, rounds

REPEATS = 5
# A lease is short, and compilation keeps one core busy. XLA tunes on the device one by one.
COMPILED_AT_ONCE = 6
AGAIN = " again"
# Above this share of a data sheet's rate a program cannot have done its work.
BELIEVED = 1.05

Agree = Callable[[str, Any, Any, tuple[Any, ...]], None]


def close(tolerance: float) -> Agree:
    """Returns a check: every array within `tolerance` of the peer's largest magnitude."""

    def agree(peer: str, ours: Any, theirs: Any, args: tuple[Any, ...]) -> None:
        del args
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            one, other = one.astype(jnp.float32), other.astype(jnp.float32)
            error = float(jnp.max(jnp.abs(one - other)) / jnp.max(jnp.abs(other)))
            if not error <= tolerance:
                raise RuntimeError(f"differs from {peer} by {error:.3g}, allowed {tolerance:.3g}")

    return agree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contest:
    """One operation, ours and its peers', on the same arguments.

    Args:
        case: Operation, implementation, dtype and shape.
        ours: Called with all of `inputs()`.
        inputs: Makes the arguments, a tuple of pytrees of arrays, on the device.
        chain: Calls in one program: enough for some milliseconds.
        agree: Raises if a peer's result is another. The default suits bfloat16, which some round
            on the way.
        peers: The same by name. One that cannot run is reported with its error.
        bounds: Functions with other results, whose time alone is compared.
        flops: Operations of one call.
        nbytes: Bytes that one call cannot but move.
        dtype: For the peak rate of the products.
    """

    case: str
    ours: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    chain: int
    agree: Agree = dataclasses.field(default=close(3e-2))
    peers: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    bounds: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    flops: float | None = None
    nbytes: float | None = None
    dtype: str = "bfloat16"

    def measure(self) -> None:
        """Prints one line for each peer, or one line if there is none."""
        args, others = jax.block_until_ready(self.inputs()), {**self.peers, **self.bounds}
        with concurrent.futures.ThreadPoolExecutor(COMPILED_AT_ONCE) as pool:
            jobs = {
                name: pool.submit(_Programs.of, function, self.chain, args)
                for name, function in {"ours": self.ours, **others}.items()
            }
        ours = jobs.pop("ours").result()
        result, facts = jax.block_until_ready(ours.once(*args)), ours.facts()
        programs, errors = {"ours": ours.chain}, {}
        for name, job in jobs.items():
            try:
                peer = job.result()
                theirs = jax.block_until_ready(peer.once(*args))
            except Exception as error:  # of the peer's own: memory, or not for this device
                errors[name] = f"{type(error).__name__}: {error}"[:200]
                continue
            if name in self.peers:
                self.agree(name, result, theirs, args)
            programs[name] = peer.chain
        del result
        programs |= {name + AGAIN: run for name, run in programs.items() if name != "ours"}
        calls = {
            name: functools.partial(self._seconds, run, args) for name, run in programs.items()
        }
        times = rounds(calls, repeats=REPEATS)
        facts |= self._rates(statistics.median(times["ours"]))
        for name in others or {None: None}:
            self._report(name, times, facts, errors)

    def _seconds(self, program: Callable[..., Any], args: tuple[Any, ...]) -> float:
        return cost(lambda: jax.block_until_ready(program(*args))).wall_s / self.chain

    def _report(
        self, peer: str | None, times: dict[str, Any], facts: dict[str, Any], errors: dict[str, str]
    ) -> None:
        report(
            self.case if peer is None else f"{self.case}, against {peer}",
            metric="wall_s",
            unit="s",
            values=times["ours"],
            peer=peer,
            peer_values=times.get(peer),
            peer_again=times.get(f"{peer}{AGAIN}"),
            chain=self.chain,
            **facts,
            **({"peer_error": errors[peer]} if peer in errors else {}),
        )

    def _rates(self, seconds: float) -> dict[str, float]:
        """The rates reached, and their shares of the device's peak if that is known."""
        flops_per_s, bytes_per_s = peaks(self.dtype)
        facts = {}
        amounts = (("flops", self.flops, flops_per_s), ("bytes", self.nbytes, bytes_per_s))
        for name, amount, peak in amounts:
            if amount is None:
                continue
            facts[f"{name}_per_s"] = amount / seconds
            if peak is None:
                continue
            share = facts[f"{name}_share_of_peak"] = amount / seconds / peak
            if name == "flops" and share > BELIEVED:
                raise RuntimeError(
                    f"{self.case}: {share:.2f} of the peak rate is no measurement: XLA must have "
                    "left out a part of the chain"
                )
        return facts


def chained(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Returns a compiled program of `count` calls one after the other; its result is a float32.

    Barriers on both sides keep XLA from taking the call out of the loop and from computing less
    than all of its results. Arguments are not copied: only a scalar goes from call to call.
    """

    @jax.jit
    def program(*args: Any) -> jax.Array:
        def body(i: Any, seen: jax.Array) -> jax.Array:
            held, _ = jax.lax.optimization_barrier((args, (i, seen)))
            out = jax.lax.optimization_barrier(function(*held))
            firsts = [jnp.ravel(leaf)[0] for leaf in jax.tree.leaves(out) if leaf.size]
            return seen + sum(first.astype(jnp.float32) for first in firsts)

        return jax.lax.fori_loop(0, count, body, jnp.float32(0))

    return program


def peaks(dtype: str) -> tuple[float | None, float | None]:
    """Returns FLOP/s and bytes/s of the device's data sheet, each None if not in the table."""
    try:
        from dovetail_train.mesh.devices import kind_of
    except ModuleNotFoundError:
        return None, None
    kind = kind_of(jax.devices()[0].device_kind)
    return kind.peak_flops.get(dtype), kind.memory_bytes_per_s


def normals(seed: int, *shapes: tuple[int, ...], dtype: Any = "bfloat16") -> list[jax.Array]:
    """Returns standard normal arrays, made on the device by one program."""

    def draw(key: jax.Array) -> list[jax.Array]:
        keys = jax.random.split(key, len(shapes))
        pairs = zip(keys, shapes, strict=True)
        return [jax.random.normal(k, shape, jnp.float32).astype(dtype) for k, shape in pairs]

    return jax.jit(draw)(jax.random.key(seed))


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of (out, gradients) of all arguments but the last, out's cotangent."""

    def both(*args: Any) -> Any:
        out, pull = jax.vjp(function, *args[:-1])
        return out, pull(args[-1])

    return both


class _Programs(NamedTuple):
    """A contender, compiled: one call, the chain of calls, and the seconds of the first."""

    once: Any
    chain: Any
    compile_s: float

    @classmethod
    def of(cls, function: Callable[..., Any], chain: int, args: tuple[Any, ...]) -> "_Programs":
        begin = time.perf_counter()
        once = jax.jit(function).lower(*args).compile()
        seconds = time.perf_counter() - begin
        return cls(once, chained(function, chain).lower(*args).compile(), seconds)

    def facts(self) -> dict[str, Any]:
        """Seconds and temporary bytes of one call."""
        memory = self.once.memory_analysis()
        return {
            "compile_s": self.compile_s,
            "temp_bytes": memory and memory.temp_size_in_bytes,
        }
