# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import load, lora
from dovetail_quant import qlora
from dovetail_quant.sites.kernel import Kernel
from dovetail_stack.recipes import adapters
from dovetail_stack.recipes.record_options import Adapting

pytestmark = pytest.mark.thorough

TOKENS = np.random.default_rng(0).integers(0, 288, (2, 9)).astype(np.int32)


def _trained(model):
    """The model with adapters that are not 0."""
    rng = np.random.default_rng(1)

    def moved(x):
        return jnp.asarray(rng.normal(size=x.shape) * 0.3, x.dtype)

    nnx.update(model, jax.tree.map(moved, nnx.state(model, nnx.LoRAParam)))
    return model


def _codes(model):
    """Paths of the kernels that are codes."""
    params = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return [path for path, x in params if isinstance(x.get_value(), Kernel)]


@pytest.mark.parametrize("codes, close", [(None, 0.0), ("int8", 0.05), ("int4", 0.4)])
def test_adapters_begin_as_the_model_or_its_codes_and_merge_to_what_they_computed(
    talker, forward, tmp_path, codes, close
):
    tuning = Adapting(length=16, lora_rank=2, lora_alpha=4.0, quantize=codes)
    model = adapters.start(talker, tuning)
    whole = load(talker)
    scale = float(jnp.abs(forward(whole, TOKENS)).max())
    # Rounding to nearest: a step of 1/127 or 1/7 of a row's maximum, averaged over the inputs.
    assert float(jnp.abs(forward(model, TOKENS) - forward(whole, TOKENS)).max()) <= close * scale
    assert len(_codes(model)) == (7 if codes else 0)
    model = _trained(model)
    merged = adapters.merged(model, tuning)
    assert not jax.tree.leaves(nnx.state(merged, nnx.LoRAParam))
    # One matrix in place of two products, in float32: 1e-6 of the sum over some 50 inputs.
    logits = forward(merged, TOKENS)
    np.testing.assert_allclose(logits, forward(model, TOKENS), rtol=0, atol=1e-4 * scale)
    assert float(jnp.abs(logits - forward(whole, TOKENS)).max()) > 0.01 * scale
    adapters.save_peft(model, tmp_path / "peft", tuning, base=talker)
    again = lora.load_peft(load(talker), tmp_path / "peft")
    theirs = lora.adapters(again)
    assert len(theirs) == 7
    ours = {
        path: (a.a, a.b) if codes else (a.lora_a, a.lora_b)
        for path, a in (qlora.adapters(model) if codes else lora.adapters(model)).items()
    }
    for path, adapter in theirs.items():
        assert (adapter.rank, adapter.scale) == (2, 2.0)
        np.testing.assert_array_equal(adapter.lora_a.get_value(), ours[path][0].get_value())
        np.testing.assert_array_equal(adapter.lora_b.get_value(), ours[path][1].get_value())


def test_without_adapters_the_model_is_the_directorys(talker, forward):
    tuning = Adapting(length=16)
    model = adapters.start(talker, tuning)
    assert adapters.merged(model, tuning) is model
    np.testing.assert_array_equal(forward(model, TOKENS), forward(load(talker), TOKENS))


@pytest.mark.parametrize("codes", [None, "int8"])
def test_the_outline_has_the_shapes_of_the_model(talker, codes):
    tuning = Adapting(length=16, lora_rank=2, quantize=codes)
    made, outline = (f(talker, tuning) for f in (adapters.start, adapters.outline))
    shapes = [
        jax.tree.map(lambda x: (x.shape, x.dtype), nnx.to_pure_dict(nnx.state(m)))
        for m in (made, outline)
    ]
    assert shapes[0] == shapes[1]


def test_inputs_that_no_group_of_four_bits_divides_are_refused(source):
    tuning = Adapting(length=16, lora_rank=2, quantize="int4")
    with pytest.raises(ValueError, match=r"16 inputs or more, got 'layers.0.* of 24 inputs.*int8"):
        adapters.start(source, tuning)
