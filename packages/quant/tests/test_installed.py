# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Entry points of other packages: chosen, refused, broken, and left out."""

import sys
import types
import warnings
from importlib.metadata import EntryPoint

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_quant import Spec, apply, explain, load, plan, save
from dovetail_quant.matmul import installed
from dovetail_quant.matmul.blocked import Blocked
from dovetail_quant.matmul.choose import choose

INT4 = Spec(weight="int4", group=16)


class Doubled:
    """Twice the product, so that its use shows; for few rows of int4."""

    def refuse(self, spec, *, rows, inputs, dtype):
        if spec.weight != "int4":
            return f"multiplies int4 alone, not {spec.weight}"
        return f"is for at most 2 rows, not {rows}" if rows > 2 else None

    def __call__(self, x, prepared):
        return 2 * Blocked()(x, prepared)


@pytest.fixture
def offer(monkeypatch):
    """Installs entry points {name: value}, over a module that counts its imports."""
    module = types.ModuleType("offering")
    module.product, module.other = Doubled(), object()
    monkeypatch.setitem(sys.modules, "offering", module)

    def install(**entries):
        points = [EntryPoint(name=n, value=v, group=installed.GROUP) for n, v in entries.items()]
        monkeypatch.setattr(installed, "entry_points", lambda group: points)
        installed.load.cache_clear()
        installed._entries.cache_clear()

    return install


@pytest.fixture(scope="module")
def model():
    return nnx.Linear(64, 32, use_bias=False, rngs=nnx.Rngs(0))


def x(rows):
    return jax.random.normal(jax.random.key(1), (rows, 64))


@pytest.mark.thorough
def test_auto_takes_it_where_it_does_not_refuse(offer, model, tmp_path):
    own = apply(model, plan(model, [("**", INT4)]))
    want = {rows: np.asarray(own(x(rows))) for rows in (2, 3)}
    offer(native="offering:product")
    jax.clear_caches()
    auto = apply(model, plan(model, [("**", INT4)]))
    np.testing.assert_array_equal(auto(x(2)), 2 * want[2])
    np.testing.assert_array_equal(auto(x(3)), want[3])
    alone = apply(model, plan(model, [("**", INT4)]), matmul="own")
    np.testing.assert_array_equal(alone(x(2)), want[2])
    same = jax.tree.map(np.array_equal, auto.kernel[...].codes(), own.kernel[...].codes())
    assert jax.tree.all(same)
    save(auto, tmp_path)
    np.testing.assert_array_equal(load(tmp_path, model)(x(2)), 2 * want[2])
    np.testing.assert_array_equal(load(tmp_path, model, matmul="own")(x(2)), want[2])


@pytest.mark.thorough
def test_explain_lists_it_with_its_reasons(offer, model):
    offer(native="offering:product")
    (few,) = explain(apply(model, plan(model, [("**", INT4)])), rows=1)
    assert (few.choice.product, few.choice.refused) == ("native", {})
    assert "native: is offered by another installed package" in str(few)
    (many,) = explain(apply(model, plan(model, [("**", INT4)])), rows=5)
    assert many.choice.product == "blocked"
    assert many.choice.refused["native"] == "is for at most 2 rows, not 5"
    (other,) = explain(apply(model, plan(model, [("**", Spec())])), rows=1)
    assert other.choice.refused["native"] == "multiplies int4 alone, not int8"
    (own,) = explain(apply(model, plan(model, [("**", INT4)]), matmul="own"), rows=1)
    assert (own.choice.product, list(own.choice.refused)) == ("blocked", ["w8a8", "digits"])


def test_rounded_activations_stay_those_of_w8a8(offer):
    offer(native="offering:product")
    spec = Spec(weight="int4", act="int8")
    chosen = choose(spec, platform="cpu", rows=1, inputs=64)
    assert chosen.product == "w8a8"
    assert chosen.refused["native"].startswith("rounds no x")


def test_other_platforms_import_nothing(offer):
    offer(native="offering_nothing:product")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = choose(INT4, platform="gpu", rows=1, inputs=64)
    assert chosen.refused["native"] == "is for a CPU, not for gpu"
    assert list(chosen.refused) == ["native", "w8a8", "digits", "blocked"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "value, reason",
    [
        ("offering_nothing:product", "cannot be imported: ModuleNotFoundError: No module named"),
        ("offering:missing", "cannot be imported: AttributeError: module 'offering' has no"),
        ("offering:other", "is object without refuse and a call"),
    ],
)
def test_a_broken_entry_warns_once_with_the_reason(offer, model, value, reason):
    offer(native=value)
    small = apply(model, plan(model, [("**", INT4)]))
    jax.clear_caches()
    with pytest.warns(RuntimeWarning, match=rf"product, got '{value}', which {reason}") as caught:
        want = np.asarray(small(x(1)))
    assert "repair its package, or write matmul='own'" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the first one was all
        small(x(2))
        (one,) = explain(small, rows=1)
    assert one.choice.product == "blocked"
    assert one.choice.refused["native"].startswith(reason)
    own = apply(model, plan(model, [("**", INT4)]), matmul="own")
    np.testing.assert_array_equal(own(x(1)), want)


def test_a_product_has_the_two_functions():
    assert isinstance(Doubled(), installed.InstalledProduct)
    assert not isinstance(jnp.matmul, installed.InstalledProduct)
