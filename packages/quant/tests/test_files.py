# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import SingleDeviceSharding
from safetensors.numpy import load_file, save_file

from dovetail_quant import Spec, apply, calibrate, files, plan, qlora
from dovetail_quant.files import load, save
from dovetail_quant.matmul.reference import Reference

SPECS = [
    Spec(),
    Spec(weight="int4", group=8),
    Spec(weight="int4", group=4, symmetric=False),
    Spec(weight="nf4", group=8),
    Spec(weight="fp8"),
]


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(7, 16, rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(16, 9, rngs=rngs)])  # odd: half a byte is left

    def __call__(self, tokens):
        return self.blocks[0](self.norm(self.embed(tokens)))


TOKENS = jnp.arange(7)
EVERY = ("**", "embed")


def bits(model):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(nnx.state(model))]


class Every(nnx.Module):
    """A layer of an odd width for each spec."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(16, 9, rngs=rngs) for _ in SPECS])

    def __call__(self, x):
        return jnp.stack([block(self.norm(x)) for block in self.blocks])


@pytest.mark.thorough
def test_every_spec_comes_back_bit_for_bit(tmp_path):
    rules = [(f"blocks.{i}", spec) for i, spec in enumerate(SPECS)]
    quantized = apply(Every(), plan(Every(), rules))
    save(quantized, tmp_path / "a" / "b")
    loaded = load(tmp_path / "a" / "b", nnx.eval_shape(Every))
    assert bits(loaded) == bits(quantized)
    x = jax.random.normal(jax.random.key(0), (3, 16))
    np.testing.assert_array_equal(loaded(x), quantized(x))


@pytest.mark.thorough
@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640)])
def test_files_have_the_mode_of_the_umask(tmp_path, umask, mode):
    quantized = apply(Model(), plan(Model(), [("blocks.*", Spec())]))
    before = os.umask(umask)
    try:
        save(quantized, tmp_path / "m")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "m").iterdir()} == {mode}


@pytest.mark.thorough
def test_codes_serve_another_product(tmp_path):
    quantized = apply(Model(), plan(Model(), [(EVERY, SPECS[1])]))
    save(quantized, tmp_path)
    loaded = load(tmp_path, Model(), matmul=Reference())
    # Sums of 16 float32 products in another order.
    np.testing.assert_allclose(loaded(TOKENS), quantized(TOKENS), rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_what_x_is_divided_by_comes_along(tmp_path):
    model = Model()
    some = plan(model, [("blocks.0", Spec(weight="int4", group=8, method="awq"))])
    batches = [jax.random.randint(jax.random.key(0), (64,), 0, 7)]
    quantized = apply(model, calibrate(model, some, batches, run=lambda m, b: m(b)))
    assert quantized.blocks[0].kernel[...].scale is not None
    save(quantized, tmp_path)
    assert bits(load(tmp_path, model)) == bits(quantized)


@pytest.mark.thorough
def test_a_directory_that_is_none_or_of_another_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"directory with quantization.json, got .*; write it"):
        load(tmp_path, Model())
    with pytest.raises(ValueError, match=r"has a quantized parameter, got none; call apply"):
        save(Model(), tmp_path)
    save(apply(Model(), plan(Model(), [(EVERY, Spec())])), tmp_path)
    other = Model()
    other.blocks[0] = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"'blocks.0.bias' as float32\[9\] where the model has"):
        load(tmp_path, other)
    file = tmp_path / "quantization.json"
    for other, message in ((1, "quantize the float model and save it again"), (4, "use a newer")):
        file.write_text(json.dumps({**json.loads(file.read_text()), "format": other}))
        with pytest.raises(ValueError, match=rf"one of \(2, 3\), got {other}; {message}"):
            load(tmp_path, Model())


def test_zero_points_of_the_format_before_are_read(tmp_path):
    model = nnx.Linear(16, 9, rngs=nnx.Rngs(0))  # every range contains 0
    quantized = apply(model, plan(model, [("**", Spec(symmetric=False))]))
    save(quantized, tmp_path)
    arrays = load_file(tmp_path / files.WEIGHTS)
    assert arrays["kernel.zeros"].dtype == np.int16
    save_file(
        {**arrays, "kernel.zeros": arrays["kernel.zeros"].astype(np.int8)}, tmp_path / files.WEIGHTS
    )
    about = json.loads((tmp_path / files.DESCRIPTION).read_text())
    (tmp_path / files.DESCRIPTION).write_text(json.dumps({**about, "format": 2}))
    assert bits(load(tmp_path, model)) == bits(quantized)
    save_file(
        {**arrays, "kernel.zeros": arrays["kernel.zeros"].astype(np.int32)},
        tmp_path / files.WEIGHTS,
    )
    with pytest.raises(
        ValueError, match=r"kernel.zeros must be int16\[9, 1\] .* got int32\[9, 1\]"
    ):
        load(tmp_path, model)


def test_shardings_of_another_model_are_refused(tmp_path):
    save(apply(Model(), plan(Model(), [(EVERY, Spec())])), tmp_path)
    place = SingleDeviceSharding(jax.devices()[0])
    shardings = nnx.State({"other": {"kernel": nnx.Param(place)}})
    with pytest.raises(ValueError, match=r"got 'other.kernel', one of 1; make them of the same"):
        load(tmp_path, Model(), shardings=shardings)


def test_arrays_that_the_model_lacks_are_not_left_behind(tmp_path):
    quantized = apply(Model(), plan(Model(), [(EVERY, Spec())]))
    save(qlora.insert(quantized, rank=2, alpha=1.0, rngs=nnx.Rngs(0)), tmp_path)
    with pytest.raises(ValueError, match=r"'blocks.0.dot_general.a', one of 2; load .* apart"):
        load(tmp_path, Model())


def test_a_save_that_was_interrupted_is_no_model(tmp_path, monkeypatch):
    quantized = apply(Model(), plan(Model(), [(EVERY, Spec())]))
    save(quantized, tmp_path)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(OSError, match=r"No space left"):
        save(quantized, tmp_path)
    with pytest.raises(ValueError, match=r"directory with quantization.json, got"):
        load(tmp_path, Model())


@pytest.mark.parametrize("size", [0, 10, -5])
def test_a_file_that_is_cut_off_is_refused(size, tmp_path):
    save(apply(Model(), plan(Model(), [("blocks.0", Spec())])), tmp_path)
    file = tmp_path / files.WEIGHTS
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"whole safetensors file, got .*weights.*; copy it again"):
        load(tmp_path, Model())


@pytest.mark.thorough
def test_calibration_and_files_pass_a_guard_against_transfers(tmp_path):
    model, x = nnx.Linear(256, 256, rngs=nnx.Rngs(0)), jnp.ones((4, 256))
    rules = plan(model, [("**", Spec(weight="int4", group=128, method="gptq"))])
    with jax.transfer_guard("disallow"):
        done = apply(model, calibrate(model, rules, [x], run=lambda m, batch: m(batch)))
        save(done, tmp_path / "q")
        loaded = load(tmp_path / "q", model)
    assert bits(loaded) == bits(done)
