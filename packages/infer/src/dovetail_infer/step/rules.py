# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of users: a small program for each, after the step that computes their logits.

Programs of steps know no rule. A step in which a row draws by a rule takes a variant that also
returns its logits, in blocks of a fixed number of rows. The program of the rule takes a block and
stores the tokens on the device, where the next step reads them. A rule thus compiles once for steps
of all sizes, before its request is queued, and a rule that does not compile touches no other.

Shape letters: B rows of a block, S slots, V vocabulary.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int, Int32

from dovetail_infer.sampling import Rule
from dovetail_infer.step import logits as logit
from dovetail_infer.step.batch import Batch
from dovetail_infer.step.placement import Placement

BLOCK = 8  # rows: a rule computes all of a block, and a step of 64 rows calls it 8 times at most
REMEMBERED = 32  # rules; those of requests stay until the requests end
REFUSED = -2  # in place of a token: the rule returned another id
Block = tuple[Float32[Array, "B V"], Float32[Array, "B V"]]


class Ruled(NamedTuple):
    """Draws of a program.

    Attributes:
        rows: Rows of the step.
        places: Their places in the block.
        packed: Token, the bits of logprobs and sampled_logprobs, and rank of each row of the block.
    """

    rows: Int[np.ndarray, " N"]
    places: Int[np.ndarray, " N"]
    packed: Int32[Array, "B 4"]


class Rules:
    """Compiles rules. All threads may call it.

    Args:
        state: Shapes and shardings of what the device keeps of all slots.
        place: Devices.

    Attributes:
        compiles: Number of compilations so far.
    """

    def __init__(self, state: Any, place: Placement):
        self._state, self._place, self.compiles = state, place, 0
        self._lock = threading.Lock()
        self._remembered = functools.lru_cache(REMEMBERED)(self._compile)

    def program(self, rule: Rule) -> Any:
        """Returns the program of a rule.

        Raises:
            ValueError: The rule cannot be traced or compiled.
            TypeError: It does not return a token id.
        """
        with self._lock:
            return self._remembered(rule)

    @jax.transfer_guard("allow")  # of constants of the rule
    def _compile(self, rule: Rule) -> Any:
        wrong: list[str] = []

        def checked(z: Array, key: Array) -> Array:
            token = rule(z, key)
            is_array = isinstance(token, jax.Array | np.ndarray | np.generic | int)
            token = jnp.asarray(token) if is_array else token
            if not is_array or token.shape != () or not jnp.issubdtype(token.dtype, jnp.integer):
                wrong.append(f"{token.dtype}{list(token.shape)}" if is_array else repr(token))
                return jnp.int32(0)
            return token

        whole, (slots, vocab) = self._place.whole, self._state.bias.shape
        shape: Any = functools.partial(jax.ShapeDtypeStruct, sharding=whole)
        block, row = shape((BLOCK, vocab), jnp.float32), shape((BLOCK,), jnp.int32)
        places = whole, jax.tree.map(lambda x: x.sharding, self._state), whole
        program = jax.jit(
            functools.partial(_draw, checked), donate_argnums=(0, 1), out_shardings=places
        )
        keys = shape((BLOCK, 2), jnp.uint32)
        try:
            with self._place.scope():
                last = shape((slots,), jnp.int32)
                lowered = program.lower(last, self._state, block, block, row, row, keys)
            compiled = None if wrong else lowered.compile()
        except Exception as error:  # of the user's function
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"rule must compile under jax.vmap and jax.jit, got rule={rule!r} that raises "
                f"{type(error).__name__}: {reason}. Use jax.numpy, without branches on values."
            ) from error
        if wrong:
            raise TypeError(
                f"rule must return one integer, the token id, got rule={rule!r} that returns "
                f"{wrong[0]}. Return jax.random.categorical(key, logits), for example."
            )
        self.compiles += 1
        return compiled


def blocks(z: Float32[Array, "R V"], warped: Float32[Array, "R V"]) -> tuple[Block, ...]:
    """Returns the rows of logits and warped logits in blocks, the last with padding."""
    padding = ((0, -len(z) % BLOCK), (0, 0))
    z, warped = jnp.pad(z, padding), jnp.pad(warped, padding)
    starts = range(0, len(z), BLOCK)
    return tuple((z[i : i + BLOCK], warped[i : i + BLOCK]) for i in starts)


def draw(
    programs: Mapping[int, Any],
    batch: Batch,
    given: Sequence[Block],
    last: Int32[Array, " S"],
    state: logit.State,
) -> tuple[Array, logit.State, list[Ruled]]:
    """Starts the programs of a step's rules.

    Args:
        programs: Program of each slot with a rule.
        batch: Input of the step.
        given: Its blocks.
        last: Last token of each slot, donated.
        state: Of all slots, donated.

    Returns:
        The last tokens and the state with the drawn tokens, and the draws.
    """
    calls: dict[tuple[int, Any], list[int]] = {}
    for row in np.flatnonzero(batch.samples & batch.options.ruled).tolist():
        call = row // BLOCK, programs[int(batch.slots[row])]
        calls.setdefault(call, []).append(row)
    drawn = []
    for (i, program), of in calls.items():
        rows = np.array(of)
        places = rows - i * BLOCK
        slots = np.full(BLOCK, len(last), np.int32)  # nothing is stored for other rows
        positions, keys = np.zeros(BLOCK, np.int32), np.zeros((BLOCK, 2), np.uint32)
        slots[places], positions[places] = batch.slots[rows], batch.lengths[rows]
        keys[places] = batch.options.keys[rows]
        last, state, packed = program(last, state, *given[i], slots, positions, keys)
        drawn.append(Ruled(rows, places, packed))
    return last, state, drawn


def _draw(
    rule: Rule,
    last: Array,
    state: logit.State,
    z: Array,
    warped: Array,
    slots: Array,
    positions: Array,
    keys: Array,
) -> tuple[Array, logit.State, Array]:
    """The program of a rule, see `draw` and `Ruled`."""
    drawn = jax.vmap(rule)(warped, logit.row_keys(keys, positions))
    inside = (drawn >= 0) & (drawn < warped.shape[1])
    ids = jnp.where(inside, drawn, 0).astype(jnp.int32)
    value = logit.at(warped, ids)
    scores = logit.score(z, ids, top=0)
    tokens = jnp.where(inside & (value > -jnp.inf), ids, REFUSED)
    # NaN in the logits may have vanished from the warped ones, behind a ban.
    tokens = jnp.where(jnp.isnan(value) | jnp.isnan(scores.logprobs), -1, tokens)
    unknown = jnp.full_like(value, jnp.nan)  # the distribution of a rule is its own
    bits = [jax.lax.bitcast_convert_type(x, jnp.int32) for x in (scores.logprobs, unknown)]
    packed = jnp.stack([tokens, *bits, scores.ranks], axis=1)
    last = last.at[slots].set(tokens, mode="drop")
    return last, logit.counted(state, slots, tokens), packed
