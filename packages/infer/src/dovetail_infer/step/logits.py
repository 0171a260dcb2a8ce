# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""From logits to tokens, inside the one jitted step: changes, filters, draws, log-probabilities.

The likeliest token and the normaliser of every row are computed first. Filters and noise are
skipped if all rows are greedy: by a conditional, or on a GPU, whose host would wait for the device
there, by a program of the kind "greedy". A greedy row reads the first computation in either case
and has the same bits.

The noise of a draw depends on the row's key and the position of the token alone, and a row is
computed without the others. A seed thus draws the same tokens in any company. Log-probabilities
have the same bits at any place among equally many rows; XLA sums 1,500 logits of one row in another
order than those of three.

Shape letters: R rows of a step, S slots, V vocabulary, W = ceil(V / 32), K likeliest tokens, M
tokens to score.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32, Int, Int32, Key, UInt32

from dovetail_infer.types import Operations

Kind = Literal["greedy", "plain", "full", "score"]


class Rows(NamedTuple):
    """Rows of a step: the fields of `RowOptions`, and where each row is.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        min_p: 0 keeps all.
        repetition_penalty: 1 for none.
        frequency_penalty: 0 for none.
        presence_penalty: 0 for none.
        bans: Whether the row's stop ids are banned.
        ruled: Whether a rule draws for the row, see `rules`.
        keys: Data of the row's threefry key.
        positions: Position of the token to draw.
        slots: Slot of the row. Any value in rows of padding.
        samples: Whether the row draws a token. False in rows of padding.
    """

    temperature: Float32[Array, " R"]
    top_k: Int32[Array, " R"]
    top_p: Float32[Array, " R"]
    min_p: Float32[Array, " R"]
    repetition_penalty: Float32[Array, " R"]
    frequency_penalty: Float32[Array, " R"]
    presence_penalty: Float32[Array, " R"]
    bans: Bool[Array, " R"]
    ruled: Bool[Array, " R"]
    keys: UInt32[Array, "R 2"]
    positions: Int32[Array, " R"]
    slots: Int32[Array, " R"]
    samples: Bool[Array, " R"]


class State(NamedTuple):
    """The `SlotState` of all slots.

    Attributes:
        bias: Added to the logits.
        prompt: Whether a token is in the prompt.
        stops: Whether a token is banned while `Rows.bans`.
        counts: Number of occurrences in the output so far.
    """

    bias: Float32[Array, "S V"]
    prompt: Bool[Array, "S V"]
    stops: Bool[Array, "S V"]
    counts: Int32[Array, "S V"]


class DeviceScores(NamedTuple):
    """`Scores` as arrays of the device.

    Attributes:
        logprobs: log p of the token; NaN where it is -1 or the row has NaN.
        ranks: 1 + the number of likelier tokens; 0 where `logprobs` is NaN.
        top_tokens: The likeliest tokens in descending order; -1 below the last above -inf.
        top_logprobs: Their log p; NaN if the row has NaN.
    """

    logprobs: Float32[Array, " M"]
    ranks: Int32[Array, " M"]
    top_tokens: Int32[Array, "M K"]
    top_logprobs: Float32[Array, "M K"]


class Drawn(NamedTuple):
    """Result of `draw`. A row with token -1 has NaN as numbers.

    Attributes:
        tokens: Drawn tokens. -1: the row does not sample, its logits have NaN or +inf, or nothing
            is left to draw.
        logprobs: log softmax(logits) of the token, before any change of the logits.
        sampled_logprobs: log p in the distribution that the token was drawn from.
        log_mass: Log of the probability that the filters kept.
        scores: Of the token, with the K likeliest; None unless `reads_state`.
        kept: Bits of the kept tokens; None unless `reads_state`.
        warped: Warped logits; None unless asked for.
    """

    tokens: Int32[Array, " R"]
    logprobs: Float32[Array, " R"]
    sampled_logprobs: Float32[Array, " R"]
    log_mass: Float32[Array, " R"]
    scores: DeviceScores | None
    kept: UInt32[Array, "R W"] | None
    warped: Float32[Array, "R V"] | None


def reads_state(kind: Kind) -> bool:
    """Returns whether programs of a kind have the options that need a `State`."""
    return kind in ("full", "score")


def draw(
    operations: Operations,
    logits: Float[Array, "R V"],
    rows: Rows,
    state: State | None,
    *,
    kind: Kind,
    top: int,
    ruled: bool = False,
    branches: bool = True,
) -> Drawn:
    """Draws a token of each row and computes its log-probabilities.

    Args:
        operations: Gives `warp_logits` and `sample`.
        logits: Logits of the model.
        rows: Options and places.
        state: Of all slots. Read if `reads_state`.
        kind: "greedy" reads no option: no row may have a temperature. "plain" reads temperature and
            filters alone. "full" and "score" read all options.
        top: K.
        ruled: Whether to return the warped logits, for rules.
        branches: Whether a conditional skips the draws if no row needs them.

    Returns:
        Tokens and their log-probabilities.
    """
    z = logits.astype(jnp.float32)
    full = reads_state(kind)
    if full and state is None:
        raise ValueError(f"kind {kind!r} needs a state, got state=None. Pass a State.")
    changed = adjust(z, rows, state) if full and state is not None else z
    raw, best = _peak(z), _peak(changed)
    kept = _one_bit(best.token, z.shape[1]) if full else None
    zero = jnp.zeros(best.token.shape, jnp.float32)
    greedy = _Choice(best.token, zero, zero, kept, None)
    choose = functools.partial(_choose, operations, changed, best, rows, greedy, ruled)
    if kind == "greedy":
        choice = greedy
    elif branches and not ruled:
        warm = rows.samples & (rows.temperature > 0)
        choice = jax.lax.cond(warm.any(), choose, lambda: greedy)
    else:
        choice = choose()
    # NaN in the logits may have vanished from the changed ones, behind a ban.
    valid = rows.samples & jnp.isfinite(raw.mass) & jnp.isfinite(best.value) & (choice.tokens >= 0)
    logprobs = at(z, choice.tokens) - raw.value - jnp.log(raw.mass)
    tokens = jnp.where(valid, choice.tokens, -1)
    return Drawn(
        tokens=tokens,
        logprobs=jnp.where(valid, logprobs, jnp.nan),
        sampled_logprobs=jnp.where(valid, choice.sampled_logprobs, jnp.nan),
        log_mass=jnp.where(valid, choice.log_mass, jnp.nan),
        scores=score(z, tokens, top=top) if full else None,
        kept=choice.kept,
        warped=choice.warped,
    )


def adjust(z: Float32[Array, "R V"], rows: Rows, state: State) -> Float32[Array, "R V"]:
    """Returns the logits after bias, bans and penalties.

    Args:
        z: Logits of the model.
        rows: Options and slots.
        state: Of all slots.
    """
    slots = jnp.clip(rows.slots, 0, state.bias.shape[0] - 1)
    counts = state.counts[slots]
    z = z + state.bias[slots]
    z = jnp.where(rows.bans[:, None] & state.stops[slots], -jnp.inf, z)
    penalty = rows.repetition_penalty[:, None]
    z = jnp.where(state.prompt[slots] | (counts > 0), jnp.where(z > 0, z / penalty, z * penalty), z)
    z = z - rows.frequency_penalty[:, None] * counts.astype(jnp.float32)
    return z - jnp.where(counts > 0, rows.presence_penalty[:, None], 0)


def score(logits: Float[Array, "M V"], tokens: Int[Array, " M"], *, top: int) -> DeviceScores:
    """Returns the log-probabilities of tokens under softmax(logits), and the `top` likeliest.

    Args:
        logits: Logits of the model.
        tokens: Token of each row; -1 for none.
        top: K.
    """
    z = logits.astype(jnp.float32)
    peak = _peak(z)
    valid = jnp.isfinite(peak.mass)
    normal = peak.value + jnp.log(peak.mass)
    logit = at(z, tokens)
    largest, ids = jax.lax.top_k(z, top)
    likelier = jnp.sum(z > logit[:, None], axis=1, dtype=jnp.int32)
    given = valid & (tokens >= 0)
    there = valid[:, None] & (largest > -jnp.inf)
    return DeviceScores(
        logprobs=jnp.where(given, logit - peak.value - jnp.log(peak.mass), jnp.nan),
        ranks=jnp.where(given, 1 + likelier, 0),
        top_tokens=jnp.where(there, ids.astype(jnp.int32), -1),
        top_logprobs=jnp.where(valid[:, None], largest - normal[:, None], jnp.nan),
    )


def counted(state: State, slots: Int[Array, " R"], tokens: Int[Array, " R"]) -> State:
    """Returns the state with each drawn token counted in its slot.

    Args:
        state: Of all slots.
        slots: Slot of each row. One outside the state counts nothing.
        tokens: Token of each row. -1 counts nothing.
    """
    # A negative index would count from the end.
    slots = jnp.where((slots >= 0) & (tokens >= 0), slots, state.counts.shape[0])
    return state._replace(counts=state.counts.at[slots, tokens].add(1, mode="drop"))


class _Peak(NamedTuple):
    """The largest logit of each row, its first token, and the sum of exp(logits - largest).

    The sum is NaN for a row with NaN, with +inf or with nothing above -inf.
    """

    value: Array
    token: Array
    mass: Array


class _Choice(NamedTuple):
    """Fields of `Drawn` by the temperatures of the rows, before their checks."""

    tokens: Array
    sampled_logprobs: Array
    log_mass: Array
    kept: Array | None
    warped: Array | None


def _peak(z: Array) -> _Peak:
    value = jnp.max(z, axis=1)
    # XLA's argmax on CPUs is three to ten times as slow as two reductions that it vectorizes.
    places = jnp.arange(z.shape[1], dtype=jnp.int32)[None]
    token = jnp.min(jnp.where(z == value[:, None], places, z.shape[1]), axis=1)
    return _Peak(value, token, jnp.sum(jnp.exp(z - value[:, None]), axis=1))


def row_keys(keys: UInt32[Array, "R 2"], positions: Int32[Array, " R"]) -> Key[Array, " R"]:
    """Returns the key of each row's draw, from the data of its seed's key and its position."""
    seeds = jax.random.wrap_key_data(keys, impl="threefry2x32")
    return jax.vmap(jax.random.fold_in)(seeds, positions)


def at(z: Float[Array, "R V"], tokens: Int[Array, " R"]) -> Float[Array, " R"]:
    """Returns the entry of each row at its token. One outside the row is the nearest."""
    places = jnp.clip(tokens, 0, z.shape[1] - 1)[:, None]
    return jnp.take_along_axis(z, places, axis=1)[:, 0]


def _choose(
    operations: Operations,
    z: Array,
    best: _Peak,
    rows: Rows,
    greedy: _Choice,
    ruled: bool,
) -> _Choice:
    """Returns the draws, and for rows without a temperature those of `greedy`.

    Args:
        operations: Gives `warp_logits` and `sample`.
        z: Changed logits [R, V].
        best: Their largest.
        rows: Options.
        greedy: Choice of the greedy rows.
        ruled: Whether to return the warped logits.
    """
    warped = operations.warp_logits(
        z,
        temperature=rows.temperature,
        top_k=rows.top_k,
        top_p=rows.top_p,
        min_p=rows.min_p,
    )
    keys = row_keys(rows.keys, rows.positions)
    tokens = operations.sample(warped, keys=keys).astype(jnp.int32)
    kept = warped > -jnp.inf
    weight = jnp.sum(jnp.exp(warped), axis=1)
    scale = jnp.where(rows.temperature > 0, rows.temperature, 1)[:, None]
    cut = jnp.where(kept, 0, jnp.exp((z - best.value[:, None]) / scale)).sum(axis=1)
    # log(weight / (weight + cut)), exact near 0 and exactly 0 where nothing is cut.
    log_mass = jnp.where(rows.temperature > 0, -jnp.log1p(cut / weight), 0)
    drawn = _Choice(
        tokens,
        at(warped, tokens) - jnp.log(weight),
        log_mass,
        None if greedy.kept is None else _bits(kept),
        None,
    )
    warm = (rows.temperature > 0) | rows.ruled if ruled else rows.temperature > 0
    choice = jax.tree.map(
        lambda a, b: jnp.where(warm.reshape(-1, *[1] * (a.ndim - 1)), a, b), drawn, greedy
    )
    return choice._replace(warped=warped) if ruled else choice


def _bits(kept: Array) -> Array:
    """Packs [R, V] booleans into words u32[R, W], the first token in the lowest bit."""
    words = -(-kept.shape[1] // 32)
    kept = jnp.pad(kept, ((0, 0), (0, 32 * words - kept.shape[1])))
    places = jnp.arange(32, dtype=jnp.uint32)
    bits = kept.reshape(-1, words, 32).astype(jnp.uint32) << places[None, None]
    return bits.sum(axis=2, dtype=jnp.uint32)


def _one_bit(tokens: Array, vocab: int) -> Array:
    words = jnp.arange(-(-vocab // 32), dtype=jnp.int32)[None]
    bit = jnp.uint32(1) << (tokens % 32).astype(jnp.uint32)
    return jnp.where(words == (tokens // 32)[:, None], bit[:, None], jnp.uint32(0))
