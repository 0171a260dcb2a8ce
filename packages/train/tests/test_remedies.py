# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of a remedy are compared with those of a trainer that has it, estimated anew."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Precision, Trainer, abstract_mesh, estimate

ROWS, WIDTH, HIDDEN = 3 * 2**20, 1024, 2048


class _Net(nnx.Module):
    """Two layers; with `remat` only their input is kept for the backward pass."""

    def __init__(self, *, width=WIDTH, hidden=HIDDEN):
        rngs = nnx.Rngs(0)
        self.up = nnx.Linear(width, hidden, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(hidden, width, use_bias=False, rngs=rngs)
        self.remat = False

    def configure(self, *, scan=None, remat=None):
        other = nnx.merge(*nnx.split(self), copy=False)
        other.remat = bool(remat)
        return other

    def __call__(self, x):
        def block(up, down, x):
            return jnp.tanh(jnp.tanh(x.astype(up.dtype) @ up) @ down)

        block = jax.checkpoint(block) if self.remat else block
        return block(self.up.kernel[...], self.down.kernel[...], x)


class _Fixed(nnx.Module):
    """Has no `configure`."""

    def __init__(self, **sizes):
        self.net = _Net(**sizes)

    def __call__(self, x):
        return self.net(x)


def _loss(model, batch, *, key):
    return (model(batch["x"]).astype(jnp.float32) ** 2).sum(), jnp.float32(batch["x"].shape[0])


def _estimate(*, count=2, axes=None, shape=(ROWS, WIDTH), kind=_Net, remat=False, **options):
    mesh = abstract_mesh(count, device="v5e", **(axes or {}))
    trainer = Trainer(optax.adam(1e-3), _loss, mesh=mesh, **options)
    model = nnx.eval_shape(kind)
    model = model.configure(scan=True, remat=True) if remat else model
    return estimate(trainer, model, {"x": jax.ShapeDtypeStruct(shape, np.float32)})


@pytest.fixture(scope="module")
def large():
    return _estimate(axes={"data": 2, "fsdp": 1})


INDEPENDENT = {
    "fsdp": lambda new: {"count": new["fsdp"], "axes": {"fsdp": new["fsdp"]}},
    "remat": lambda new: {"axes": {"data": 2, "fsdp": 1}, "remat": True},
    "accumulate": lambda new: {
        "axes": {"data": 2, "fsdp": 1},
        "accumulate": new["accumulate"],
    },
    "compute": lambda new: {
        "axes": {"data": 2, "fsdp": 1},
        "precision": Precision(compute=new["compute"]),
    },
    "rows": lambda new: {"axes": {"data": 2, "fsdp": 1}, "shape": (new["rows"], WIDTH)},
}


@pytest.mark.thorough
def test_the_saved_bytes_are_the_difference_of_two_estimates(large):
    assert not large.fits
    assert {name for r in large.remedies for name in r.changes} == {*INDEPENDENT, "data"}
    for remedy in large.remedies:
        name = next(name for name in remedy.changes if name != "data")
        after = _estimate(**INDEPENDENT[name](remedy.changes))
        assert remedy.saved_bytes == large.total_bytes - after.total_bytes > 0, remedy
        assert remedy.fits == after.fits, remedy


def test_sufficient_remedies_come_first_with_the_text_to_write(large):
    fits = [remedy.fits for remedy in large.remedies]
    assert fits == sorted(fits, reverse=True)
    assert any(fits)
    code = {remedy.code: remedy.fits for remedy in large.remedies}
    assert code["Trainer(mesh=make_mesh(fsdp=2)) on 2 devices"] is False
    assert code["model.configure(scan=True, remat=True)"] is True
    assert code['Trainer(precision=Precision(compute="bfloat16"))'] is False
    (parts,) = [r for r in large.remedies if "accumulate" in r.changes]
    assert parts.code == f"Trainer(accumulate={parts.changes['accumulate']})"
    (rows,) = [r for r in large.remedies if "rows" in r.changes]
    assert rows.code == f"a batch of {rows.changes['rows']} rows"
    text = str(large)
    assert "does not fit\n\nbytes of one device saved by a change\n" in text
    for remedy in large.remedies:
        assert f"{'fits' if remedy.fits else 'does not fit'}: {remedy.code}\n" in text
    stored = json.loads(json.dumps(large.json()))["remedies"]
    assert [each["code"] for each in stored] == [remedy.code for remedy in large.remedies]


@pytest.mark.thorough
def test_the_weakest_sufficient_value_is_named(large):
    (remedy,) = [r for r in large.remedies if "accumulate" in r.changes]
    divisors = (2, 3, 4, 6, 8, 12)
    axes = {"data": 2, "fsdp": 1}
    least = next(n for n in divisors if _estimate(axes=axes, accumulate=n).fits)
    assert remedy.changes == {"accumulate": least}
    assert least > 2  # else nothing was skipped


def test_a_step_that_fits_needs_none():
    small = _estimate(shape=(2**10, WIDTH))
    assert small.fits
    assert small.remedies == ()
    assert "saved by" not in str(small)


@pytest.mark.thorough
def test_a_model_without_configure_has_no_remat():
    changes = {name for r in _estimate(kind=_Fixed).remedies for name in r.changes}
    assert changes == {"accumulate", "compute", "fsdp", "rows"}


@pytest.mark.thorough
def test_changes_are_combined_if_none_suffices_alone():
    def wide():
        return _Fixed(width=2**13, hidden=2**15)

    options = {"kind": wide, "shape": (6, 36000, 2**13)}  # 6 rows: no more than two devices
    large = _estimate(**options)
    combined, *single = large.remedies
    assert [remedy.changes for remedy in single] == [
        {"accumulate": 3},
        {"compute": "bfloat16"},
        {"rows": 2},
    ]
    assert not any(remedy.fits for remedy in single)
    assert combined.fits
    assert combined.changes == {"accumulate": 3, "compute": "bfloat16"}
    assert combined.code == 'Trainer(accumulate=3, precision=Precision(compute="bfloat16"))'
    after = _estimate(accumulate=3, precision=Precision(compute="bfloat16"), **options)
    assert combined.saved_bytes == large.total_bytes - after.total_bytes


def _wide():
    return _Net(width=2**15, hidden=2**14)


@pytest.mark.thorough
def test_what_does_not_suffice_stops_where_more_saves_little():
    """Four GiB of parameters, and a batch that is larger than the memory of the device."""
    shape = (3 * 2**16, 2**15)
    large = _estimate(kind=_wide, shape=shape)
    (single,) = [r for r in large.remedies if [*r.changes] == ["accumulate"]]
    most = _estimate(kind=_wide, shape=shape, accumulate=shape[0] // 2)
    assert not most.fits
    assert single.changes["accumulate"] < 20
    # Three quarters: the residuals of the parameters' casts and sums stay.
    assert single.saved_bytes > 0.75 * (large.total_bytes - most.total_bytes)


@pytest.mark.thorough
def test_what_is_estimated_to_save_memory_saves_it_when_compiled(uncached):
    """XLA's temporaries, on this machine: each change makes them smaller."""
    rows, width = 512, 64
    batch = {"x": np.zeros((rows, width), np.float32)}
    model = _Net(width=width, hidden=256)

    def needs(model, **options):
        trainer = Trainer(optax.sgd(1e-3), _loss, max_skips=0, **options)
        compiled = trainer.program(model, batch).compile().memory_analysis()
        estimated = estimate(trainer, model, batch, device="v5e")
        return estimated.total_bytes, compiled.temp_size_in_bytes

    plain, parts = needs(model), needs(model, accumulate=8)
    assert parts[0] < plain[0]
    assert parts[1] < plain[1]
