# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_train import Trainer, abstract_mesh, estimate, lm_loss, slice_ids
from dovetail_train.memory.links import link_bytes
from dovetail_train.testing import TinyDecoder


def _sent(spec, dcn, **axes):
    mesh = abstract_mesh(16, **axes)
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    array = jax.ShapeDtypeStruct((48, 5), jnp.bfloat16, sharding=sharding)
    sent = link_bytes({"w": array}, slice_ids(mesh, dcn=dcn))
    return sent.slices, sent.link_bytes, sent.dcn_bytes


BYTES = 48 * 5 * 2


@pytest.mark.parametrize(
    "spec, dcn, axes, expected",
    [
        # A ring of 16 in one slice: 15/16 of the array, reduced and gathered.
        ((), {}, {"data": 16}, (1, 2 * 15 / 16 * BYTES, 0)),
        (("fsdp",), {}, {"data": 2}, (1, 2 * 15 / 16 * BYTES, 0)),
        # Two slices of 8: each device has an eighth to exchange with the other slice.
        (("fsdp",), {"data": 2}, {"data": 2}, (2, 2 * 7 / 8 * BYTES, BYTES / 8)),
        # Split over tensor, half the array among 4 devices of a slice.
        (
            ("fsdp", "tensor"),
            {"data": 2},
            {"data": 2, "tensor": 2},
            (2, 2 * 3 / 4 * BYTES / 2, BYTES / 2 / 4),
        ),
        # Four slices of 4, one device of each in a sum with the others.
        (("fsdp",), {"data": 4}, {"data": 4}, (4, 2 * 3 / 4 * BYTES, 2 * 3 / 4 * BYTES / 4)),
        # Stages cross: no gradient does.
        (("stage",), {"stage": 2}, {"stage": 2}, (2, 2 * 7 / 8 * BYTES / 2, 0)),
    ],
)
def test_bytes_are_those_of_a_reduction_in_the_best_order(spec, dcn, axes, expected):
    assert _sent(spec, dcn, **axes) == expected


def _estimate(dcn=None, **rates):
    trainer = Trainer(optax.adamw(1e-3), lm_loss(), mesh=abstract_mesh(8, data=2, device="v5e"))
    model = TinyDecoder(vocab_size=512, width=256, depth=1, rngs=nnx.Rngs(0))
    tokens = jax.ShapeDtypeStruct((8, 6), jnp.int32)
    batch = {"tokens": tokens, "targets": tokens, "mask": tokens}
    return estimate(trainer, model, batch, dcn=dcn, **rates)


@pytest.mark.thorough
def test_an_estimate_prices_both_links():
    needs = _estimate({"data": 2}, link_bytes_per_s=4e9, dcn_bytes_per_s=1e9)
    assert needs.slices == 2
    assert needs.link_seconds == pytest.approx(needs.link_bytes / 4e9)
    assert needs.dcn_seconds == pytest.approx(needs.dcn_bytes / 1e9)
    total = 4 * sum(x.size for x in jax.tree.leaves(_params()))
    assert needs.dcn_bytes == pytest.approx(total / 4, abs=16)
    text = str(needs)
    assert f"between 2 slices    {needs.dcn_bytes / 2**20:>14,.1f} MiB  " in text
    assert f"{needs.dcn_seconds * 1e3:,.4g} ms" in text
    assert str(_estimate({"data": 2})).count("time not known") == 2
    assert "slice" not in str(_estimate())
    assert _estimate().dcn_bytes == 0


def _params():
    return nnx.state(TinyDecoder(vocab_size=512, width=256, depth=1, rngs=nnx.Rngs(0)), nnx.Param)


@pytest.mark.thorough
def test_what_is_no_rate_and_what_is_no_axis_is_refused():
    with pytest.raises(ValueError, match=r"dcn_bytes_per_s must be .* got dcn_bytes_per_s=0.0; wr"):
        _estimate(dcn_bytes_per_s=0.0)
    with pytest.raises(ValueError, match="got data=2 over 3 slices"):
        _estimate({"data": 3})
