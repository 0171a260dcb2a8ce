# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""That the bytes of a state are those of live arrays, on meshes, is in test_trainer."""

import html
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import (
    Precision,
    Trainer,
    abstract_mesh,
    estimate,
    fsdp_shardings,
    make_mesh,
)

ROWS, WIDTH, HIDDEN = 64, 256, 512  # matrices of 131072: above the size that is split


class _Net(nnx.Module):
    """Keeps the input of its recomputed part for the backward pass, and nothing else."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.up = nnx.Linear(WIDTH, HIDDEN, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, 1, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.up(x)


def _loss(model, batch, *, key):
    hidden, weight = model(batch["x"]), model.down.kernel[...]
    total = jax.checkpoint(lambda h, w: (jnp.tanh(h) @ w).sum())(hidden, weight)
    return total, jnp.float32(batch["x"].shape[0])


def _estimate(*, count=8, axes=None, device="NVIDIA H200", rates=None, **options):
    mesh = abstract_mesh(count, **(axes or {}))
    trainer = Trainer(optax.adam(1e-3), _loss, mesh=mesh, **options)
    batch = {"x": jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32)}
    return estimate(trainer, nnx.eval_shape(_Net), batch, device=device, **(rates or {}))


@pytest.mark.capability("estimates for an absent accelerator")
def test_bytes_are_those_of_one_device():
    found = _estimate(ema=0.9)
    up, down = WIDTH * HIDDEN * 4, HIDDEN * 4  # down is too small to be split
    each = up // 8 + down
    skips = 2 * 4
    want = {"params": each, "frozen": 0, "rest": 0, "opt": 2 * each + 4, "ema": each}
    assert found.state_bytes == want | {"skips": skips, "guard": 0}
    assert found.batch_bytes == ROWS * WIDTH * 4 // 8
    assert found.gradient_bytes == each
    assert found.residual_bytes == ROWS * HIDDEN * 4 // 8
    assert found.total_bytes == 5 * each + 4 + skips + (ROWS * WIDTH + ROWS * HIDDEN) * 4 // 8
    assert found.fits
    assert found.mesh == {"fsdp": 8}


@pytest.mark.thorough
def test_what_changes_the_bytes():
    plain = _estimate()
    parts = _estimate(accumulate=4)
    assert parts.residual_bytes == plain.residual_bytes // 4
    assert parts.gradient_bytes == 2 * plain.gradient_bytes
    whole = _estimate(axes={"data": 8, "fsdp": 1})
    assert whole.state_bytes["params"] == (WIDTH + 1) * HIDDEN * 4
    assert whole.residual_bytes == plain.residual_bytes
    split = _estimate(axes={"fsdp": 4, "context": 2})
    assert split.residual_bytes == plain.residual_bytes
    cast = _estimate(precision=Precision(compute="bfloat16"))
    # The input stays float32, so the product is. Kept is the copy of `down`, whose input needs it.
    assert cast.residual_bytes == plain.residual_bytes + HIDDEN * 2 // 8


def test_operations_and_the_bound_on_time():
    found = _estimate()
    up, down = 2 * ROWS * WIDTH * HIDDEN, 2 * ROWS * HIDDEN
    assert found.model_flops == 2 * up + 3 * down  # the input has no gradient
    assert found.recomputed_flops == 0 or found.recomputed_flops == down
    moved = 2 * sum(found.state_bytes.values()) / 4800e9
    assert found.bound == "memory"
    assert found.seconds == pytest.approx(moved)
    large = _estimate(device="TPU v6 lite", precision=Precision(compute="bfloat16"))
    assert large.memory_bytes == 32 * 2**30
    assert large.seconds == pytest.approx(
        max(
            2 * sum(large.state_bytes.values()) / 1640e9,
            (large.model_flops + large.recomputed_flops) / 8 / 918e12,
        )
    )


def test_an_unknown_device_has_no_bound():
    found = _estimate(device="cpu")
    assert (found.memory_bytes, found.fits, found.seconds, found.bound) == (None, None, None, None)
    assert "of the device            not known\n" in str(found)
    missing = "no published FLOP/s in float32: pass peak_flops= (--peak-flops), and no bandwidth"
    assert f"at least                   not known: {missing}" in str(found)


@pytest.mark.thorough
def test_operations_that_the_trainer_was_told_are_believed():
    found = _estimate(flops=1e15)
    assert (found.model_flops, found.bound) == (10**15, "products")


def test_it_reads_as_a_table_and_as_json():
    found = _estimate(ema=0.9)
    text = str(found)
    assert text.startswith("8 x NVIDIA H200, fsdp=8\n")
    assert "state.ema" in text
    assert "fits" in text
    assert json.loads(json.dumps(found.json()))["total_bytes"] == found.total_bytes
    assert html.unescape(found._repr_html_()) == f"<pre>{text}</pre>"


@pytest.mark.thorough
def test_a_trainer_without_devices_only_plans():
    trainer = Trainer(optax.sgd(0.1), _loss, mesh=abstract_mesh(8))
    batch = {"x": np.zeros((8, WIDTH), "f4")}
    with pytest.raises(
        RuntimeError, match=r"training needs devices, got a trainer on.*or estimate\("
    ):
        trainer.init(_Net())
    program = trainer.program(_Net(), batch)
    assert "stablehlo" in program.lower("tpu").as_text()
    with pytest.raises(RuntimeError, match=r"compiled for devices, got one on.*or use lower"):
        program.compile()


def test_rows_that_the_mesh_cannot_split_are_refused():
    with pytest.raises(ValueError, match=r"must be divisible by accumulate.*3 × 8 = 24.*rows=64"):
        _estimate(accumulate=3)


@pytest.mark.thorough
def test_a_name_of_a_device_is_the_kind_that_it_means():
    assert _estimate(device="h200") == _estimate(device="NVIDIA H200") == _estimate()
    assert _estimate(device="trillium").device == "TPU v6 lite"


@pytest.mark.parametrize("device", ["toaster", "", "A100"])
def test_an_unknown_device_is_refused_before_anything_is_traced(device):
    def loss(model, batch, *, key):
        raise AssertionError("traced")

    trainer = Trainer(optax.sgd(0.1), loss, mesh=abstract_mesh(8))
    message = rf"device must name one kind.*, got device='{device}'; write one of 'NVIDIA A100-SXM"
    with pytest.raises(ValueError, match=message):
        estimate(trainer, nnx.eval_shape(_Net), {"x": np.zeros((8, WIDTH))}, device=device)


def test_the_device_of_an_abstract_mesh_is_the_default():
    batch = {"x": jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32)}
    trainer = Trainer(optax.adam(1e-3), _loss, mesh=abstract_mesh(8, device="v5p"))
    assert estimate(trainer, nnx.eval_shape(_Net), batch).device == "TPU v5"
    other = estimate(trainer, nnx.eval_shape(_Net), batch, device="h200")
    assert other == _estimate(device="NVIDIA H200")


@pytest.mark.thorough
@pytest.mark.capability("estimates for an absent accelerator")
def test_a_trainer_on_this_machine_is_estimated_for_another():
    """Shardings and devices of the model do not matter: it is placed on a twin of the mesh."""
    mesh = make_mesh(devices=jax.devices()[:1])
    model = _Net()
    nnx.update(model, jax.device_put(nnx.state(model), fsdp_shardings(model, mesh)))
    trainer = Trainer(optax.adam(1e-3), _loss, mesh=mesh)
    needs = estimate(trainer, model, {"x": np.zeros((ROWS, WIDTH), "f4")}, device="l4")
    assert needs == _estimate(count=1, device="NVIDIA L4")
    assert trainer.mesh is mesh


def test_arrays_on_another_mesh_are_refused():
    mesh = abstract_mesh(4)
    state = nnx.state(nnx.eval_shape(_Net))
    model = nnx.merge(
        nnx.graphdef(nnx.eval_shape(_Net)),
        jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            state,
            fsdp_shardings(nnx.eval_shape(_Net), mesh),
        ),
    )
    trainer = Trainer(optax.adam(1e-3), _loss, mesh=abstract_mesh(8))
    with pytest.raises(ValueError, match=r"must lie on the trainer's mesh .*pass that mesh"):
        estimate(trainer, model, {"x": np.zeros((8, WIDTH), "f4")})


@pytest.mark.thorough
def test_calls_that_cannot_be_counted_leave_a_lower_bound():
    def looped(model, batch, *, key):
        total, count = _loss(model, batch, key=key)
        total = jax.lax.while_loop(lambda x: x < 0, lambda x: jnp.vdot(x, x), total)
        return jax.lax.stop_gradient(total), count

    batch = {"x": jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32)}
    trainer = Trainer(optax.adam(1e-3), looped, mesh=abstract_mesh(8))
    needs = estimate(trainer, nnx.eval_shape(_Net), batch)
    assert needs.opaque == {"while": 1}
    assert needs.seconds == _estimate().seconds  # its state is moved once, as there
    assert (
        'could not be counted: while x 1; state it by jax.named_scope: "trips=12.5" with its mean '
        "rounds around the loop\nat least" in str(needs)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_a_step_with_operations_that_need_devices_to_lower_is_estimated_all_the_same(platform):
    """A callback is one; on a machine with a GPU, cuDNN's attention is another."""

    def told(model, batch, *, key):
        total, count = _loss(model, batch, key=key)
        jax.debug.callback(lambda x: None, total)
        shape = jax.ShapeDtypeStruct((), np.float32)
        seen = jax.pure_callback(lambda x: x, shape, jax.lax.stop_gradient(total))
        return total + jax.lax.stop_gradient(seen), count

    batch = {"x": jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32)}
    trainer = Trainer(optax.adam(1e-3), told, mesh=abstract_mesh(8))
    model = nnx.eval_shape(_Net)
    assert estimate(trainer, model, batch).total_bytes == _estimate().total_bytes
    program = trainer.program(model, batch)
    program.check(platform)
    with pytest.raises(ValueError, match="devices to be present"):  # so the check has seen it
        program.lower(platform)


def test_a_time_without_a_known_rate_is_not_known():
    needs = _estimate(device="v5e")  # no float32 figures are published
    assert (needs.seconds, needs.bound) == (None, None)
    assert "at least                   not known: no published FLOP/s in float32: pass " in str(
        needs
    )
    assert "peak_flops= (--peak-flops)" in str(needs)
    assert "bandwidth" not in str(needs)


@pytest.mark.thorough
def test_given_rates_win_over_published_ones_and_are_printed():
    for device in ("cpu", "H200"):
        found = _estimate(device=device, rates={"peak_flops": 3e9, "memory_bytes_per_s": 7e6})
        by_products = (found.model_flops + found.recomputed_flops) / 8 / 3e9
        by_memory = 2 * sum(found.state_bytes.values()) / 7e6
        assert found.seconds == pytest.approx(max(by_products, by_memory))
        assert found.bound == ("products" if by_products > by_memory else "memory")
        assert "with the given        peak_flops=3e+09, memory_bytes_per_s=7e+06" in str(found)
        assert json.loads(json.dumps(found.json()))["given"] == ["peak_flops", "memory_bytes_per_s"]
    published = _estimate()
    assert (published.given, published.memory_bytes_per_s) == ((), 4800e9)
    half = _estimate(device="v5e", rates={"peak_flops": 1e12})  # no float32 figures are published
    assert (half.given, half.memory_bytes_per_s) == (("peak_flops",), 819e9)
    assert half.seconds is not None


@pytest.mark.parametrize("name", ["peak_flops", "memory_bytes_per_s"])
@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_is_positive(name, rate):
    match = f"{name} must be a positive.*got {name}={rate}; write for example {name}=1e12"
    with pytest.raises(ValueError, match=match):
        _estimate(rates={name: rate})
