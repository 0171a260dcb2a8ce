# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import importlib

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import diff, llama, load, save
from dovetail_models.comparing.diff import Change
from dovetail_models.families.mixtral import mixtral

CONFIG = llama(vocab_size=30, embed=12, depth=3, heads=6, kv_heads=2, head_dim=4, mlp=20)


def altered(model, path, value):
    """A copy in which the parameter of a layer has another value."""
    copy = nnx.clone(model)
    layer, name = path
    getattr(copy.layers[layer].mlp, name).kernel.set_value(jnp.asarray(value))
    return copy


def up(model, layer):
    return np.array(model.layers[layer].mlp.up.kernel[...])


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(CONFIG, seed=0)


def test_a_model_does_not_differ_from_itself_nor_from_its_file(model, tmp_path):
    save(model, tmp_path / "a")
    for other in (nnx.clone(model), tmp_path / "a", load(tmp_path / "a")):
        found = diff(model, other)
        assert not found
        assert found.same == 3 + 9 * 3
    assert str(found) == "30 parameters with equal values"


def test_values_the_largest_difference_first(model, tmp_path):
    small, large = up(model, 0), up(model, 2)
    small[3, 5] += 0.25
    large[:] *= 3
    other = altered(altered(model, (0, "up"), small), (2, "up"), large)
    save(other, tmp_path / "b")
    for b in (other, tmp_path / "b"):
        found = diff(model, b)
        first, second = sorted(found.values, key=lambda d: d.path)
        assert [d.path for d in (first, second)] == [
            "layers.0.mlp.up.kernel",
            "layers.2.mlp.up.kernel",
        ]
        assert [d.largest for d in found.values] == sorted([first.largest, second.largest])[::-1]
        # To float32's rounding of the sum and of the product.
        assert first.largest == pytest.approx(0.25, rel=1e-6)
        assert first.relative == pytest.approx(0.25 / np.abs(up(model, 0)).max(), rel=1e-6)
        assert second.relative == pytest.approx(2, rel=1e-6)
        assert found.same == 28
        assert found


def test_what_is_not_a_number(model):
    plain = up(model, 1)
    plain[0, 0], plain[1, 1], plain[2, 2] = np.nan, np.inf, -np.inf
    odd = altered(model, (1, "up"), plain)
    assert not diff(odd, odd)
    (found,) = diff(model, odd).values
    assert found.largest == found.relative == np.inf
    zero = altered(model, (1, "up"), np.zeros_like(plain))
    (found,) = diff(zero, model).values
    assert found.relative == np.inf
    assert found.largest == np.abs(up(model, 1)).max()


def test_large_parameters_in_parts(model, monkeypatch):
    # The package exports the function by the name of its module.
    module = importlib.import_module("dovetail_models.comparing.diff")
    monkeypatch.setattr(module, "_CHUNK", 41)
    last = up(model, 1)
    last[-1, -1] += 0.5
    (found,) = diff(model, altered(model, (1, "up"), last)).values
    assert found.largest == pytest.approx(0.5, rel=1e-6)
    assert found.relative == pytest.approx(0.5 / np.abs(up(model, 1)).max(), rel=1e-6)


def test_dtypes_differ_and_values_are_compared_all_the_same(model, tmp_path):
    save(model, tmp_path / "a")
    found = diff(model, load(tmp_path / "a", dtype=jnp.bfloat16))
    change = Change(path="layers.{0..2}.mlp.up.kernel", a="float32[12, 20]", b="bfloat16[12, 20]")
    assert change in found.kinds
    assert not found.config
    # bfloat16 keeps 8 bits.
    assert len(found.values) == 30
    assert all(0 < d.relative <= 2**-8 for d in found.values)


def test_configurations_and_trees(model, random_model):
    layers = tuple(
        dataclasses.replace(la, attention=dataclasses.replace(la.attention, qk_norm=True, window=4))
        for la in CONFIG.layers[:2]
    )
    other = random_model(
        dataclasses.replace(
            CONFIG, layers=layers, vocab_size=31, tie=True, extra=(("eos_token_id", "2"),)
        )
    )
    found = diff(model, other)
    assert Change(path="vocab_size", a=30, b=31) in found.config
    assert Change(path="tie", a=False, b=True) in found.config
    assert Change(path="layers.length", a=3, b=2) in found.config
    assert Change(path="layers.{0..1}.attention.window", a=None, b=4) in found.config
    assert Change(path="layers.2.mlp.hidden", a=20, b="-") in found.config
    assert Change(path="extra.eos_token_id", a="-", b="2") in found.config
    assert "lm_head.kernel" in found.only_a
    assert "layers.2.mlp.up.kernel" in found.only_a
    assert found.only_b == ("layers.{0..1}.attn.k_norm.scale", "layers.{0..1}.attn.q_norm.scale")
    assert found.kinds == (
        Change(path="embed.embedding", a="float32[30, 12]", b="float32[31, 12]"),
    )
    assert repr(found) == (
        f"Difference(config: {len(found.config)}, only in a: {len(found.only_a)}, only in b: "
        f"{len(found.only_b)}, shape or dtype: 1, values: {len(found.values)}, "
        f"same: {found.same}; print it)"
    )
    text = str(found).splitlines()
    assert "  layers.{0..1}.attention.window: None | 4" in text
    assert text.index("config, a | b") < text.index("only in a") < text.index("only in b")


def test_many_values_are_counted(model, random_model):
    text = str(diff(model, random_model(CONFIG, seed=1)))
    assert text.count("kernel: ") + text.count("embedding: ") + text.count("scale: ") == 20
    assert "and 10 more" in text
    assert text.endswith("0 parameters with equal values")


def test_a_stack_in_a_file(random_model, tmp_path):
    config = mixtral(vocab_size=30, embed=12, depth=1, heads=6, kv_heads=2, mlp=20, experts=3)
    model = random_model(config)
    save(model, tmp_path / "a")
    assert not diff(tmp_path / "a", model)
