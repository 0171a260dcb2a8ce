# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An estimate is that of the planned device: its kernels, their residuals and FLOPs."""

import jax
import jax.numpy as jnp
import optax
import pytest

import dovetail_kernels as kernels
from dovetail_models import abstract, flops, init, llama
from dovetail_train import (
    Precision,
    Trainer,
    abstract_mesh,
    context_parallel,
    estimate,
    lm_loss,
    make_mesh,
)

ROWS, LENGTH = 8, 66
CONFIG = llama(vocab_size=96, embed=64, depth=2, heads=2, kv_heads=1, mlp=128, tie=True)
FIELDS = {"tokens": jnp.int32, "targets": jnp.int32, "mask": jnp.float32}
BATCH = {name: jax.ShapeDtypeStruct((ROWS, LENGTH), dtype) for name, dtype in FIELDS.items()}


def _trainer(mesh, selected):
    """A trainer that notes the implementation of each attention."""

    def attention(q, k, v, **options):
        known = {name: x for name, x in options.items() if name != "kv"}
        selected.add(str(kernels.explain(kernels.attention, q, k, v, **known).selected))
        return kernels.attention(q, k, v, **options)

    return Trainer(
        optax.adam(1e-3),
        lm_loss(attention=context_parallel(attention)),
        mesh=mesh,
        precision=Precision(compute="bfloat16"),
    )


@pytest.mark.parametrize("count", [1, 4])
def test_an_estimate_of_an_absent_gpu_has_the_time_and_fit_of_its_own_attention(count):
    mesh, selected = abstract_mesh(count, device="H200"), set()
    needs = estimate(_trainer(mesh, selected), abstract(CONFIG, mesh=mesh), BATCH)
    assert selected == {"cudnn"}
    assert (needs.device, needs.devices, needs.opaque) == ("NVIDIA H200", count, {})
    assert needs.fits
    assert needs.seconds is not None
    # The other count is from the configuration, with half of the scores. The kernel also computes
    # the other half of the diagonal: two products of 32 numbers, for 2 layers of 2 heads.
    diagonal = 2 * 2 * ROWS * LENGTH / 2 * 2 * 2 * 32
    wanted = flops(CONFIG, tokens=ROWS * LENGTH, length=LENGTH, training=True) + 3 * diagonal
    assert needs.model_flops == wanted


@pytest.mark.thorough
def test_devices_of_this_machine_do_not_decide():
    selected, expected = set(), set()
    mesh = make_mesh(devices=jax.devices()[:1])
    here = estimate(_trainer(mesh, selected), init(CONFIG, mesh=mesh, seed=0), BATCH, device="H200")
    absent = abstract_mesh(1, device="H200")
    there = estimate(_trainer(absent, expected), abstract(CONFIG, mesh=absent), BATCH)
    assert here == there
    assert selected == expected == {"cudnn"}


@pytest.mark.thorough
def test_other_devices_get_other_kernels():
    residuals = {}
    for device in ("a100-80gb", "v5e", "cpu"):
        mesh, selected = abstract_mesh(1, device=device), set()
        needs = estimate(_trainer(mesh, selected), abstract(CONFIG, mesh=mesh), BATCH)
        assert selected == {"cudnn" if device == "a100-80gb" else "blocked"}
        assert needs.opaque == {}
        assert (needs.seconds is None) == (device == "cpu")
        residuals[device] = needs.residual_bytes
    assert residuals["v5e"] == residuals["cpu"]
