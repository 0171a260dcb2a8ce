# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses and gradients of embeddings against torch.nn.functional, on the same numbers."""

import jax
import numpy as np
import pytest

from dovetail_tune import losses

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch", reason="torch is not installed")


def _vectors(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _torch(function, *arrays):
    """Returns the losses, and the gradients of a weighted sum of them."""
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    values = function(*tensors)
    (values * torch.arange(1.0, len(values) + 1)).sum().backward()
    return values.detach().numpy(), [x.grad.numpy() for x in tensors]


def _ours(function, *arrays):
    def total(arrays):
        values = function(*arrays)
        return (values * np.arange(1, len(values) + 1, dtype=np.float32)).sum()

    return np.asarray(function(*arrays)), jax.grad(total)(arrays)


def _assert_equal(ours, theirs, *, tolerance):
    np.testing.assert_allclose(ours[0], theirs[0], rtol=tolerance, atol=tolerance)
    for own, their in zip(ours[1], theirs[1], strict=True):
        # The weights go up to 9.
        np.testing.assert_allclose(own, their, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("symmetric", [False, True])
def test_info_nce(symmetric):
    cross = torch.nn.functional.cross_entropy

    def theirs(queries, keys):
        scores = queries @ keys.T / 0.5
        own = torch.arange(len(queries))
        forward = cross(scores, own, reduction="none")
        if not symmetric:
            return forward
        return (forward + cross(scores[:, : len(queries)].T, own, reduction="none")) / 2

    def ours(queries, keys):
        return losses.info_nce(queries, keys, temperature=0.5, symmetric=symmetric)

    arrays = _vectors(9, 6, seed=0), _vectors(14, 6, seed=1)
    # float32 on both sides, of scores up to 20.
    _assert_equal(_ours(ours, *arrays), _torch(theirs, *arrays), tolerance=5e-6)


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_triplet(distance):
    functional = torch.nn.functional

    def between(a, b):
        return 1 - functional.cosine_similarity(a, b)

    def theirs(anchor, positive, negative):
        if distance == "euclidean":
            return functional.triplet_margin_loss(
                anchor, positive, negative, margin=0.7, reduction="none"
            )
        return functional.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=between, margin=0.7, reduction="none"
        )

    def ours(anchor, positive, negative):
        return losses.triplet(anchor, positive, negative, margin=0.7, distance=distance)

    arrays = tuple(_vectors(9, 6, seed=seed) for seed in range(3))
    # torch adds 1e-6 to each difference of a Euclidean distance.
    _assert_equal(_ours(ours, *arrays), _torch(theirs, *arrays), tolerance=5e-6)
