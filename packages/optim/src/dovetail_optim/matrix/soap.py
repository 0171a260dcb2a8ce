# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SOAP (2409.11321): Adam in the eigenbasis of Shampoo's preconditioner.

    L ← s L + (1 - s) G Gᵀ,   R ← s R + (1 - s) Gᵀ G
    Q_L, Q_R: the eigenvectors of L and R, by one step of orthogonal iteration, qr(L Q_L)
    M ← β1 M + (1 - β1) G,    V ← β2 V + (1 - β2) (Q_Lᵀ G Q_R)²
    W ← W - η Q_L (Q_Lᵀ M Q_R / (√V + ε)) Q_Rᵀ - η λ W      with Adam's correction of bias

As in the authors' code, the first gradient only makes the bases, since its own projection would be
trivial: no parameter moves, and the correction of bias counts from the second. A step uses the
bases of the step before. The QR of a refresh takes the columns by falling eigenvalue, estimated as
the diagonal of Q_Lᵀ L Q_L. The paper's algorithm 4 does not sort; eigenvectors whose eigenvalues
trade places then stay mixed for many refreshes.

Differences from the authors' code (github.com/nikhilvyas/SOAP):

- They permute V with the sorted columns. Here each column returns to its place after the QR, and V
  stays: the same algorithm, without a copy of V.
- They refresh all bases in every tenth step, which then takes several times as long as the others.
  Here the matrices of all layers and heads refresh in rotation, so that steps cost the same: each
  step refreshes one of every `refresh`.
- M is stored unrotated and rotated for use, so it does not depend on the basis. Their later
  versions store M rotated and move it to each new basis: the same M.
- ε is added after the correction of V's bias, as in Adam and Optax; theirs before, which makes it
  ε / √(1 - β2ᵗ).
- Weight decay is a share of W before the step, as in AdamW; theirs of W after it. The default is
  none, theirs 0.01; that of `max_dim` is 8,192, theirs 10,000.
- An array of more than two axes is a stack of matrices; theirs gets a basis for each axis. A vector
  is refused, so that `route` says who moves it; theirs takes Adam.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from dovetail_optim import _elsewhere
from dovetail_optim.matrix.decay import Decaying, Mode, Rate, at, check_decaying, decay_update, wide
from dovetail_optim.matrix.exchange import by_compiler
from dovetail_optim.matrix.matrix import (
    Matrices,
    Rule,
    assign,
    check_count,
    check_share,
    parse_rules,
)

# Products of a Gram matrix in TF32 or bfloat16 lose the small eigenvalues, and so the basis.
_EXACT = jax.lax.Precision.HIGHEST


class Basis(NamedTuple):
    """One side of the matrices of a parameter. Both are None for a side longer than `max_dim`.

    Attributes:
        gram: Averaged products.
        vectors: Their eigenvectors, as columns in any order.
    """

    gram: Float[Array, "b n n"] | None
    vectors: Float[Array, "b n n"] | None


class SoapState(NamedTuple):
    """State of `soap`. All float32, or float64 for float64 parameters.

    The columns of a basis may be in any order, to which V refers. A state saved before refreshes
    sorted them is restored as it is, and is sorted at its next refresh.

    Attributes:
        step: Number of steps taken.
        mu: M, of the parameters' shapes.
        nu: V in the bases, of the parameters' shapes.
        left_gram: L [matrices, m, m]; None for a side longer than `max_dim`.
        left: Its eigenvectors.
        right_gram: R [matrices, n, n]; None for a side longer than `max_dim`.
        right: Its eigenvectors.
    """

    step: Int32[Array, ""]
    mu: Any
    nu: Any
    left_gram: Any
    left: Any
    right_gram: Any
    right: Any


@_elsewhere.soap
def soap(
    learning_rate: Rate,
    *,
    matrix: str | Sequence[Rule] = "i o -> , i, o",
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.95,
    eps: ArrayLike = 1e-8,
    basis_decay: ArrayLike = 0.95,
    refresh: int = 10,
    max_dim: int = 8192,
    weight_decay: Rate = 0.0,
    decay: Mode = "coupled",
) -> optax.GradientTransformation:
    """Moves each matrix W by SOAP (2409.11321, algorithm 3).

    A matrix of m by n has 2 m n + 2 m² + 2 n² numbers of state. A refresh costs products and a QR
    of m³ and n³. Updates are in the parameter's dtype. Under `optax.inject_hyperparams` write
    `static_args=("refresh", "max_dim")`.

    Args:
        learning_rate: η, a number or a schedule of the step. Step 0 only makes the bases.
        matrix: Axis string: the axes of a parameter, then its batch, input and output axes, as in
            "l i h d -> l h, i, d" for heads in a stack of layers (see `matrix.py`). Or pairs of a
            name pattern and such a string; the first match decides.
        b1: Adam's β1.
        b2: Adam's β2.
        eps: Adam's ε.
        basis_decay: Decay s of the moving averages of G Gᵀ and Gᵀ G that give the bases.
        refresh: Steps between refreshes of a matrix's basis.
        max_dim: A longer side has no basis: its factor is the identity.
        weight_decay: λ.
        decay: Mode of `dovetail_optim.decay`.

    Raises:
        ValueError: An argument is out of range. At `init` and during tracing of `update`: a
            parameter's rank does not fit its axis string.

    Example:

        >>> import optax
        >>> from dovetail_optim import route
        >>> tx = route([("layers.**.kernel", soap(3e-3)), ("**", optax.adamw(3e-3))])
    """
    check_decaying(learning_rate, weight_decay, decay)
    for name, value in (("b1", b1), ("b2", b2), ("basis_decay", basis_decay)):
        check_share(name, value)
    check_count("refresh", refresh, example="10")
    check_count("max_dim", max_dim, example="8192")
    settings = _Soap(
        learning_rate=learning_rate,
        rules=parse_rules(matrix),
        b1=b1,
        b2=b2,
        eps=eps,
        basis_decay=basis_decay,
        refresh=refresh,
        max_dim=max_dim,
        weight_decay=weight_decay,
        decay=decay,
    )
    return optax.GradientTransformation(settings.init, settings.update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Soap(Decaying):
    """The two functions of the transformation, with the parsed arguments of `soap`."""

    rules: Matrices | list[tuple[str, Matrices]]
    b1: Any
    b2: Any
    eps: Any
    basis_decay: Any
    refresh: int
    max_dim: int

    def learning_rate_of(self, state: Any) -> Any:
        """Returns the rate of the next update, or None for a state of another transformation."""
        return at(self.learning_rate, state.step) if isinstance(state, SoapState) else None

    def init(self, params: Any) -> SoapState:
        with jax.transfer_guard("allow"):
            leaves, structure = jax.tree.flatten(params)
            matrices = assign(self.rules, params)
            states = [_begin(p, m, self.max_dim) for p, m in zip(leaves, matrices, strict=True)]
            return _state(jnp.zeros([], jnp.int32), states, structure)

    def update(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, SoapState]:
        weights = self.weights("soap", updates, params)
        grads, structure = jax.tree.flatten(updates)
        matrices = assign(self.rules, updates)
        moved, after, turn = [], [], 0
        for g, w, folding, old in zip(
            grads, weights, matrices, _leaves(state, structure), strict=True
        ):
            update_leaf = functools.partial(self.leaf, folding=folding, turn=turn)
            change, leaf = by_compiler(update_leaf, (w, old))(g, w, old, state.step)
            moved.append(change)
            after.append(leaf)
            turn += folding.sizes(g.shape)[0]
        step = jnp.asarray(optax.safe_increment(state.step))
        return jax.tree.unflatten(structure, moved), _state(step, after, structure)

    def leaf(
        self, g: Array, w: Array, old: "_Leaf", step: Array, *, folding: Matrices, turn: int
    ) -> tuple[Array, "_Leaf"]:
        """Returns the change of one parameter and its new state. Uses the bases of the step before.

        `turn` is the number of the parameter's first matrix, for the rotation of refreshes.
        """
        fold = folding.fold(g.astype(wide(g.dtype)))
        m = self.b1 * folding.fold(old.mu) + (1 - self.b1) * fold
        turned, v = self.adam(m, fold, folding.fold(old.nu), old, step)
        moved = self.change(turned, w, folding, step).astype(w.dtype)
        m, v = (folding.unfold(jnp.where(step == 0, 0, x), g.shape) for x in (m, v))
        left = self.next(old.left, g=fold, form="bio,bjo->bij", step=step, turn=turn)
        right = self.next(old.right, g=fold, form="bio,bip->bop", step=step, turn=turn)
        return moved, _Leaf(m, v, left, right)

    def adam(
        self,
        m: Float[Array, "b i o"],
        g: Float[Array, "b i o"],
        v: Float[Array, "b i o"],
        bases: "_Leaf",
        step: Array,
    ) -> tuple[Float[Array, "b i o"], Float[Array, "b i o"]]:
        """Returns Adam's direction, computed in the bases and rotated back, and V."""
        left, right = bases.left, bases.right
        v = self.b2 * v + (1 - self.b2) * jnp.square(_turn(g, left, right))
        # Steps that moved parameters, this one among them.
        taken = jnp.maximum(step, 1).astype(g.dtype)
        unbiased = _turn(m, left, right) / (1 - self.b1**taken)
        direction = unbiased / (jnp.sqrt(v / (1 - self.b2**taken)) + self.eps)
        return _turn(direction, left, right, back=True), v

    def change(self, turned: Array, w: Array, folding: Matrices, step: Array) -> Array:
        """Returns the change of W; zero at the first gradient."""
        eta = jnp.where(step == 0, 0, at(self.learning_rate, step)).astype(turned.dtype)
        moved = folding.unfold(-eta * turned, w.shape)
        if not self.decays:
            return moved
        amount = jnp.where(step == 0, 0, self.amount(step))
        return decay_update(moved, w, amount=amount, mode=self.decay)

    def next(self, basis: "Basis", *, g: Array, form: str, step: Array, turn: int) -> "Basis":
        """Returns one side's basis after a step. `form` is the einsum of its Gram matrix."""
        old = basis.vectors
        if basis.gram is None or old is None:
            return basis
        product = jnp.einsum(form, g, g, precision=_EXACT)
        gram = self.basis_decay * basis.gram + (1 - self.basis_decay) * product
        count = len(gram)
        # Matrix j is due where (turn + j - step) % refresh == 0: so many of the parameter at most.
        first = (step - turn) % self.refresh
        due = first + self.refresh * jnp.arange(-(-count // self.refresh))

        def refreshed() -> Array:
            due_now = jnp.minimum(due, count - 1)
            # An index out of range is not written.
            return old.at[due].set(_iterate(gram[due_now], old[due_now]), mode="drop")

        some = jax.lax.cond(first < count, refreshed, lambda: old)
        vectors = jax.lax.cond(step == 0, lambda: _eigenvectors(gram), lambda: some)
        return Basis(gram, vectors)


class _Leaf(NamedTuple):
    """State of one parameter."""

    mu: Array
    nu: Array
    left: Basis
    right: Basis


def _state(step: Array, leaves: list[_Leaf], structure: Any) -> SoapState:
    rows = [(x.mu, x.nu, *x.left, *x.right) for x in leaves]
    columns = zip(*rows, strict=True) if rows else [()] * 6
    return SoapState(step, *(jax.tree.unflatten(structure, column) for column in columns))


def _leaves(state: SoapState, structure: Any) -> list[_Leaf]:
    """Inverts `_state`; None is a leaf here."""
    columns = [structure.flatten_up_to(tree) for tree in state[1:]]
    return [_Leaf(m, v, Basis(*x[:2]), Basis(*x[2:])) for m, v, *x in zip(*columns, strict=True)]


def _begin(p: Array, folding: Matrices, max_dim: int) -> _Leaf:
    count, rows, columns = folding.sizes(p.shape)
    dtype = wide(p.dtype)

    def basis(n: int) -> Basis:
        if n > max_dim:
            return Basis(None, None)
        return Basis(jnp.zeros((count, n, n), dtype), jnp.zeros((count, n, n), dtype))

    mu, nu = (jnp.zeros_like(p, dtype=dtype) for _ in range(2))
    return _Leaf(mu, nu, basis(rows), basis(columns))


def _turn(x: Array, left: Basis, right: Basis, *, back: bool = False) -> Array:
    """Computes Q_Lᵀ x Q_R, or with `back` Q_L x Q_Rᵀ."""
    if left.vectors is not None:
        form = "bij,bjo->bio" if back else "bji,bjo->bio"
        x = jnp.einsum(form, left.vectors, x, precision=_EXACT)
    if right.vectors is not None:
        form = "bij,boj->bio" if back else "bij,bjo->bio"
        x = jnp.einsum(form, x, right.vectors, precision=_EXACT)
    return x


def _eigenvectors(gram: Float[Array, "b n n"]) -> Float[Array, "b n n"]:
    """Returns eigenvectors by falling eigenvalue, the order of orthogonal iteration."""
    return jnp.linalg.eigh(gram)[1][:, :, ::-1]


def _iterate(gram: Float[Array, "b n n"], vectors: Float[Array, "b n n"]) -> Float[Array, "b n n"]:
    """Returns the vectors after one step of orthogonal iteration, each in its old column.

    QR keeps the first column and turns each later one away from those before, so the columns enter
    by falling eigenvalue. They leave in their old order, to which V refers.
    """
    powers = jnp.einsum("bij,bjk->bik", gram, vectors, precision=_EXACT)
    eigenvalues = jnp.sum(vectors * powers, axis=1, keepdims=True)
    order = jnp.argsort(eigenvalues, axis=2, descending=True)
    iterated = jnp.linalg.qr(jnp.take_along_axis(powers, order, axis=2))[0]
    return jnp.take_along_axis(iterated, jnp.argsort(order, axis=2), axis=2)
