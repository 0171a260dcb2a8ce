# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The distance of SOAP's bases from the eigenvectors of the gradients' covariance while it drifts.

The figure is the off-diagonal share of the covariance C of the rows in their basis Q, the Frobenius
norm of Q^T C Q off its diagonal over that of C: mean over steps 100 to 400, for each of eight
matrices of 64 by 64. It is 0 if Q holds the eigenvectors. Ours is `soap` with its defaults. The
peer is the same iteration without sorting, as in the paper's algorithm 4, in NumPy; beside them
stand the authors' sorted iteration in NumPy, and the eigenvectors of the averaged product by `eigh`
at each refresh. `average` is the share of that averaged product, which is all an optimizer knows.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_optim import soap
from measure import report

MATRICES, SIZE, STEPS, SETTLED, REFRESH, DECAY = 8, 64, 400, 100, 10, 0.95
Refresh = Callable[[np.ndarray, np.ndarray], np.ndarray]
# Turns of the eigenvectors in all steps, and periods of their eigenvalues.
DRIFTS = {
    "none": (0.0, 0.0),
    "eigenvectors turn": (0.25, 0.0),
    "eigenvalues trade places": (0.0, 2.0),
    "both": (0.25, 2.0),
}


def roots(rng: np.random.Generator, turns: float, periods: float) -> Iterator[np.ndarray]:
    """Square roots of a covariance for each step: eigenvectors times 2^-2 to 2^2."""
    basis = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0]
    phases = rng.uniform(0, 2 * np.pi, SIZE)
    skew = np.triu(rng.normal(size=(SIZE, SIZE)), 1)
    # Cayley's rotation turns by twice the angle; a column of the matrix is √SIZE long.
    skew = (skew - skew.T) * np.pi * turns / STEPS / np.sqrt(SIZE)
    turn = np.linalg.solve(np.eye(SIZE) + skew, np.eye(SIZE) - skew)
    for t in range(STEPS):
        yield basis * 2.0 ** (2 * np.sin(phases + 2 * np.pi * periods * t / STEPS))
        basis = turn @ basis


def plain(gram: np.ndarray, basis: np.ndarray) -> np.ndarray:
    return np.linalg.qr(gram @ basis)[0]


def by_authors(gram: np.ndarray, basis: np.ndarray) -> np.ndarray:
    return plain(gram, basis[:, np.argsort(-np.diag(basis.T @ gram @ basis))])


def exact(gram: np.ndarray, basis: np.ndarray) -> np.ndarray:
    return np.linalg.eigh(gram)[1]


def averages(grads: np.ndarray) -> Iterator[np.ndarray]:
    """The averaged product L after each gradient."""
    gram = np.zeros((SIZE, SIZE))
    for g in grads:
        gram = DECAY * gram + (1 - DECAY) * g @ g.T
        yield gram


def bases(grads: np.ndarray, number: int, refresh: Refresh) -> Iterator[np.ndarray]:
    """The basis after each step; refreshed in the steps in which `soap` refreshes this matrix."""
    for t, gram in enumerate(averages(grads)):
        if t == 0:
            basis = np.linalg.eigh(gram)[1][:, ::-1]
        elif (number - t) % REFRESH == 0:
            basis = refresh(gram, basis)
        yield basis


def by_soap(grads: np.ndarray) -> np.ndarray:
    """The bases of `soap` after each step, [steps, matrices, SIZE, SIZE]."""
    tx = soap(1e-3, matrix="l i o -> l, i, o", refresh=REFRESH, basis_decay=DECAY)

    def step(state: Any, g: Any) -> tuple[Any, Any]:
        _, state = tx.update(g, state)
        return state, state.left

    state = tx.init(jnp.zeros(grads.shape[1:]))
    return np.asarray(jax.lax.scan(step, state, jnp.asarray(grads, jnp.float32))[1], np.float64)


def share(basis: np.ndarray, covariance: np.ndarray) -> float:
    inside = basis.T @ covariance @ basis
    off = inside - np.diag(np.diag(inside))
    return float(np.linalg.norm(off) / np.linalg.norm(inside))


def mean_share(some: Iterator[np.ndarray], covariances: list[np.ndarray]) -> float:
    pairs = zip(some, covariances, strict=True)
    return float(np.mean([share(b, c) for b, c in pairs][SETTLED:]))


def main() -> None:
    for name, (turns, periods) in DRIFTS.items():
        rng = np.random.default_rng(0)
        factors = [list(roots(rng, turns, periods)) for _ in range(MATRICES)]
        noise = rng.normal(size=(STEPS, MATRICES, SIZE, SIZE)) / np.sqrt(SIZE)
        grads = np.swapaxes(factors, 0, 1) @ noise
        ours = by_soap(grads)
        shares: dict[str, list[float]] = {}
        for i in range(MATRICES):
            true = [f @ f.T for f in factors[i]]
            average = list(averages(grads[:, i]))
            candidates = {
                "ours": ours[:, i],
                **{f.__name__: list(bases(grads[:, i], i, f)) for f in (plain, by_authors, exact)},
            }
            for key, some in candidates.items():
                shares.setdefault(key, []).append(mean_share(iter(some), true))
                shares.setdefault(f"{key} average", []).append(mean_share(iter(some), average))
        medians = {key: float(f"{np.median(values):.4g}") for key, values in shares.items()}
        report(
            f"SOAP's bases, drift: {name}",
            metric="off_diagonal_share",
            unit="of the norm",
            values=shares["ours"],
            peer="without sorting",
            peer_values=shares["plain"],
            authors=medians["by_authors"],
            eigh=medians["exact"],
            average=medians["ours average"],
            peer_average=medians["plain average"],
            authors_average=medians["by_authors average"],
            eigh_average=medians["exact average"],
        )


if __name__ == "__main__":
    main()
