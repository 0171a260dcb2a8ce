# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Execution of a list of blocks: unrolled, scanned, and with recomputation.

The tree of parameters is always per layer. Scanning happens inside the traced function: the list is
cut into runs that repeat a short pattern of equal blocks, the weights of each run are stacked, and
`jax.lax.scan` iterates over them. The compiled program thus holds one copy of the pattern. The
alternative, a tree stacked on disk and in the optimizer, compiles as fast and saves the stacked
copy, but then every other library has to know two layouts.

Each block runs in a `jax.named_scope` of its path, `layers.3`; profiles and HLO show it as a part
of `op_name`. A scanned block has the indices of all blocks that share its program: `layers.{0..5}`,
or `layers.{0..10..2}` and `layers.{1..11..2}` of a pattern of two. Scopes are metadata alone: they
change no value and no key of the compilation cache.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from dovetail_models.describing.abbreviation import abbreviate
from dovetail_models.placing.shard import Rules

NAMES = ("attn_out", "mlp_hidden")
# (block, x, input) -> (x, extra): the stream, and other results of the block.
Step = Callable[..., tuple[jax.Array, Any]]


@dataclasses.dataclass(frozen=True)
class Remat:
    """Recomputes each block in the backward pass, except the named values.

    The names are "attn_out" (the attention operation's output) and "mlp_hidden" (the down
    projection's input). A custom `attention` must name its output, and any other residuals of its
    gradient, "attn_out" by `jax.ad_checkpoint.checkpoint_name`.

    On a CPU with jax 0.10 recomputation frees memory only if it is scanned.

    Attributes:
        save: Values to keep on the device. `()` keeps only each block's input.
        offload: Values to keep in host memory. The device needs "pinned_host" memory.

    Raises:
        ValueError: A name is unknown, or is in both.

    Example:

        >>> from dovetail_models import Remat, abstract, llama
        >>> model = abstract(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32))
        >>> model.configure(scan=True, remat=Remat()).remat
        Remat(save=('attn_out',), offload=())
    """

    save: tuple[str, ...] = ("attn_out",)
    offload: tuple[str, ...] = ()

    def __post_init__(self):
        for option in ("save", "offload"):
            unknown = [name for name in getattr(self, option) if name not in NAMES]
            if unknown:
                raise ValueError(
                    f"Remat keeps values by name, one of {NAMES}, got {option}="
                    f"{getattr(self, option)!r}. Remove {unknown} or use Remat(save=())."
                )
        both = sorted(set(self.save) & set(self.offload))
        if both:
            raise ValueError(
                "Remat keeps a value on the device or on the host, got in both save and offload: "
                f"{both}. Remove them from one."
            )

    @property
    def policy(self) -> Callable[..., Any]:
        """Policy for `jax.checkpoint`."""
        if not self.offload:
            return jax.checkpoint_policies.save_only_these_names(*self.save)
        return jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=list(self.save),
            names_which_can_be_offloaded=list(self.offload),
            offload_src="device",
            offload_dst="pinned_host",
        )


def configured(
    model: Any, *, scan: bool | None, remat: Remat | bool | None, rules: Rules | None
) -> Any:
    """Returns a model over the same Variables with other options. None keeps an option.

    Args:
        model: The decoder or encoder.
        scan: Compile one copy of each repeated layer.
        remat: Recomputation. True keeps only each block's input, False switches it off.
        rules: Place activations on meshes.
    """
    other = nnx.merge(*nnx.split(model), copy=False)
    other.scan = model.scan if scan is None else scan
    recompute = Remat(save=()) if remat is True else remat or None
    other.remat = model.remat if remat is None else recompute
    other.rules = model.rules if rules is None else rules
    return other


def run(
    blocks: Sequence[nnx.Module],
    x: jax.Array,
    *,
    step: Step,
    scan: bool,
    remat: Remat | None,
    keep: Collection[int] = (),
    inputs: Sequence[Any] | None = None,
) -> tuple[jax.Array, list[Any], dict[int, jax.Array]]:
    """Runs all blocks.

    Args:
        blocks: The blocks, in order.
        x: The residual stream.
        step: Maps (block, x, input) to (x, extra).
        scan: Scan runs of equal blocks.
        remat: Recomputation, or None.
        keep: Indices of blocks whose output is returned.
        inputs: One pytree per block, which a scan stacks. Default: None for each.

    Returns:
        `x` after the last block, the extra of each block, and {index: x after the block} for
        `keep`.
    """
    given = [None] * len(blocks) if inputs is None else inputs
    items = [_Item(i, *pair) for i, pair in enumerate(zip(blocks, given, strict=True))]
    extras, kept = [], {}
    cuts = [*sorted(i + 1 for i in keep), len(blocks)] if scan else range(1, len(blocks) + 1)
    start = 0
    for stop in cuts:
        section = items[start:stop]
        if scan:
            x, extra = _scanned(section, x, step, remat=remat)
            extras += extra
        else:
            x, extra = _unrolled(section[0], x, step, remat=remat)
            extras.append(extra)
        if stop - 1 in keep:
            kept[stop - 1] = x
        start = stop
    return x, extras, kept


class _Item(NamedTuple):
    """A block, its index in the model, and its input."""

    layer_id: int
    block: nnx.Module
    given: Any


def _unrolled(
    item: _Item, x: jax.Array, step: Step, *, remat: Remat | None
) -> tuple[jax.Array, Any]:
    with jax.named_scope(f"layers.{item.layer_id}"):
        return _apply(item.block, x, item.given, step, remat=remat)


def _scanned(
    items: Sequence[_Item], x: jax.Array, step: Step, *, remat: Remat | None
) -> tuple[jax.Array, list[Any]]:
    extras = []
    for first, period, repeats in _runs([_kind(item.block) for item in items]):
        if repeats == 1:
            x, extra = _unrolled(items[first], x, step, remat=remat)
            extras.append(extra)
        else:
            run_items = items[first : first + period * repeats]
            x, extra = _scan(run_items, x, step, period=period, remat=remat)
            extras += extra
    return x, extras


def _scan(
    items: Sequence[_Item], x: jax.Array, step: Step, *, period: int, remat: Remat | None
) -> tuple[jax.Array, list[Any]]:
    split = [nnx.split(item.block) for item in items]
    graphs = [graph for graph, _ in split[:period]]
    scopes = [[item.layer_id for item in items[i::period]] for i in range(period)]
    slices = [(state, item.given) for (_, state), item in zip(split, items, strict=True)]
    stacks = [
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *slices[i::period]) for i in range(period)
    ]

    def body(x, stacks):
        extras = []
        for graph, (state, given), layer_ids in zip(graphs, stacks, scopes, strict=True):
            block = nnx.merge(graph, state)
            # A scan already separates the two passes, so CSE need not be prevented.
            with _scope(layer_ids):
                x, extra = _apply(block, x, given, step, remat=remat, prevent_cse=False)
            extras.append(extra)
        return x, extras

    x, stacked = jax.lax.scan(body, x, stacks)
    repeats = len(items) // period
    per_repeat = [
        [jax.tree.map(lambda a, i=i: a[i], extra) for extra in stacked] for i in range(repeats)
    ]
    return x, [extra for period in per_repeat for extra in period]


def _apply(
    block: nnx.Module,
    x: jax.Array,
    given: Any,
    step: Step,
    *,
    remat: Remat | None,
    prevent_cse: bool = True,
) -> tuple[jax.Array, Any]:
    if remat is None:
        return step(block, x, given)
    graph, state = nnx.split(block)

    @functools.partial(jax.checkpoint, policy=remat.policy, prevent_cse=prevent_cse)
    def recomputed(state: nnx.State, x: jax.Array, given: Any) -> tuple[jax.Array, Any]:
        return step(nnx.merge(graph, state), x, given)

    return recomputed(state, x, given)


def _scope(layer_ids: Sequence[int]) -> AbstractContextManager[Any]:
    """Returns the named scope of blocks that share a program, such as `layers.{0..5}`."""
    (name,) = abbreviate((f"layers.{i}", None) for i in layer_ids)
    return jax.named_scope(name)


def _kind(block: nnx.Module) -> tuple[object, ...]:
    """Returns a key that is equal for blocks of one scan: the graph and every leaf's shape and
    dtype.
    """
    graph, state = nnx.split(block)
    return graph, tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state))


def _runs(kinds: Sequence[object]) -> list[tuple[int, int, int]]:
    """Cuts the list into runs (first, period, repeats); each is the longest from its first."""
    runs, first = [], 0
    while first < len(kinds):
        rest = len(kinds) - first
        options = [(p, _repeats(kinds, first, p)) for p in range(1, rest // 2 + 1)] or [(1, 1)]
        period, repeats = max(options, key=lambda o: (o[0] * o[1] if o[1] > 1 else 1, -o[0]))
        if repeats == 1:
            period = 1
        runs.append((first, period, repeats))
        first += period * repeats
    return runs


def _repeats(kinds: Sequence[object], first: int, period: int) -> int:
    pattern, repeats = kinds[first : first + period], 1
    while kinds[first + repeats * period : first + (repeats + 1) * period] == pattern:
        repeats += 1
    return repeats
