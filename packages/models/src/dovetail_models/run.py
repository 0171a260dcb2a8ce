# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Ways to run a list of blocks: one after another, scanned, and with recomputation.

The tree of parameters is per layer, always. Scanning happens inside the traced function: the list
is cut into runs that repeat a short pattern of equal blocks, each run's weights are stacked and
`jax.lax.scan` walks them, so the compiled program holds one copy of the pattern. The alternative, a
tree that is stacked on disk and in the optimizer, compiles as fast and saves the stacked copy, but
then every other library has to know two layouts.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

NAMES = ("attn_out", "mlp_hidden")
Step = Callable[[nnx.Module, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Remat:
    """Recompute a block in the backward pass, but keep the values named in `save`.

    The names are "attn_out" (what attention returns) and "mlp_hidden" (what the down projection
    takes); `save=()` keeps only each block's input. On a CPU with jax 0.10 recomputation frees
    memory only when it is scanned.
    """

    save: tuple[str, ...] = ("attn_out",)

    def __post_init__(self):
        unknown = [name for name in self.save if name not in NAMES]
        if unknown:
            raise ValueError(
                f"Remat saves values by name, one of {NAMES}, got save={self.save!r}. "
                f"Remove {unknown} or use Remat(save=())."
            )


def run(
    blocks: Sequence[nnx.Module], x: jax.Array, step: Step, *, scan: bool, remat: Remat | None
) -> jax.Array:
    """`x` after `step(block, x)` for each block in order."""
    if not scan:
        for block in blocks:
            x = _apply(block, x, step, remat=remat)
        return x
    for first, period, repeats in _runs([_kind(block) for block in blocks]):
        chosen = blocks[first : first + period * repeats]
        x = _scan(chosen, x, step, period=period, remat=remat)
    return x


def _scan(blocks, x: jax.Array, step: Step, *, period: int, remat: Remat | None) -> jax.Array:
    if len(blocks) == period:
        return run(blocks, x, step, scan=False, remat=remat)
    split = [nnx.split(block) for block in blocks]
    graphs = [graph for graph, _ in split[:period]]
    stacks = [
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state for _, state in split[i::period]))
        for i in range(period)
    ]

    def body(x, states):
        for graph, state in zip(graphs, states, strict=True):
            # A scan already keeps the two passes apart, so nothing needs to block the compiler.
            x = _apply(nnx.merge(graph, state), x, step, remat=remat, prevent_cse=False)
        return x, None

    return jax.lax.scan(body, x, stacks)[0]


def _apply(
    block: nnx.Module, x: jax.Array, step: Step, *, remat: Remat | None, prevent_cse: bool = True
) -> jax.Array:
    if remat is None:
        return step(block, x)
    graph, state = nnx.split(block)
    policy = jax.checkpoint_policies.save_only_these_names(*remat.save)

    @functools.partial(jax.checkpoint, policy=policy, prevent_cse=prevent_cse)
    def recomputed(state: nnx.State, x: jax.Array) -> jax.Array:
        return step(nnx.merge(graph, state), x)

    return recomputed(state, x)


def _kind(block: nnx.Module) -> tuple[object, ...]:
    """What two blocks must share to be steps of one scan: the graph and every leaf's shape."""
    graph, state = nnx.split(block)
    return graph, tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state))


def _runs(kinds: Sequence[object]) -> list[tuple[int, int, int]]:
    """(first, period, repeats) in order, covering the list; each the longest from its first."""
    found, first = [], 0
    while first < len(kinds):
        rest = len(kinds) - first
        options = [(p, _repeats(kinds, first, p)) for p in range(1, rest // 2 + 1)] or [(1, 1)]
        period, repeats = max(options, key=lambda o: (o[0] * o[1] if o[1] > 1 else 1, -o[0]))
        if repeats == 1:
            period = 1
        found.append((first, period, repeats))
        first += period * repeats
    return found


def _repeats(kinds: Sequence[object], first: int, period: int) -> int:
    pattern, repeats = kinds[first : first + period], 1
    while kinds[first + repeats * period : first + (repeats + 1) * period] == pattern:
        repeats += 1
    return repeats
