# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Plans from Qwix's rules, against the codes and the products of Qwix itself."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from flax import nnx

from dovetail_quant import Plan, Spec, apply, freeze, from_qwix, load, qat, save
from dovetail_quant.sites.modules import module_at
from dovetail_quant.testing import check_matmul

OF_QWIX = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own calls of NNX
EPS = np.finfo(np.float32).eps


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.gate = nnx.Linear(256, 128, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(128, 256, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.silu(self.gate(x)))


class Experts(nnx.Module):
    """Two experts of which each row has one, sorted."""

    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (2, 256, 32)) / 16)
        self.ragged_dot = jax.lax.ragged_dot

    def __call__(self, x):
        return self.ragged_dot(x, self.kernel[...], jnp.array([1, len(x) - 1]))


class Decoder(nnx.Module):
    """`layers_0` as Linen writes it, `layers.0` as NNX does."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 256, rngs=rngs)
        self.layers_0 = nnx.Dict(mlp=Mlp(rngs))
        self.layers = nnx.List([nnx.Dict(mlp=Mlp(rngs))])
        self.einsum = nnx.Einsum("bd,nhd->bnh", (2, 64, 256), rngs=rngs)
        self.experts = Experts(rngs)
        self.lm_head = nnx.Linear(256, 11, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        x = self.layers[0]["mlp"](self.layers_0["mlp"](self.embed(tokens)))
        x = x + jnp.concatenate([self.einsum(x).reshape(len(x), -1)] * 2, axis=1)
        x = x + jnp.concatenate([self.experts(x)] * 8, axis=1)
        return self.lm_head(x)


@pytest.fixture
def model():
    return Decoder(nnx.Rngs(0))


TOKENS = jnp.array([3, 1, 10])
PUBLISHED = qwix.QuantizationRule(
    module_path=r"layers_\d+/mlp/.*",
    weight_qtype="int4",
    act_qtype="int4",
    tile_size=128,
    weight_calibration_method="rms,7",
)


@pytest.mark.capability("rules written for Qwix quantize a model, with Qwix's numbers")
def test_the_published_program(model):
    chosen = from_qwix(model, [PUBLISHED])
    spec = Spec(weight="int4", group=128, act="int4", rms=7.0)
    whole = Spec(weight="int4", act="int4", rms=7.0)  # the tile is all 128 inputs
    assert chosen.specs == {
        "layers.0.mlp.gate": spec,
        "layers.0.mlp.down": whole,
        "layers_0.mlp.gate": spec,
        "layers_0.mlp.down": whole,
    }
    assert "int4 by groups of 128, absmax, activations int4, range 7 root mean" in str(chosen)
    assert chosen.left_alone["embed"] == "Qwix rounds no lookups"
    assert chosen.left_alone["lm_head"] == "no rule matches"
    assert Plan.from_json(chosen.to_json()) == chosen


def qwix_levels(a, qtype, *, axis, tile, method="absmax"):
    q = qwix.quantize(
        jnp.asarray(a, jnp.float32),
        qtype,
        channelwise_axes=[1 - axis],
        tiled_axes={axis: tile},
        calibration_method=method,
    )
    return q, np.asarray(qwix.dequantize(q), np.float64)


@pytest.mark.thorough
@pytest.mark.parametrize("qtype, act", [("int4", "int4"), ("float8_e4m3fn", "fp8")])
@pytest.mark.parametrize("tile", [64, 0.5, 256])
@pytest.mark.parametrize("method", ["rms,7", "rms,1.5", "absmax,0.7", "absmax"])
def test_codes_and_products_are_qwix_s(qtype, act, tile, method):
    generator = np.random.default_rng(0)
    module = nnx.Dict(site=nnx.Linear(256, 24, use_bias=False, rngs=nnx.Rngs(1)))
    x = generator.normal(size=(5, 256)) * np.exp(generator.normal(size=(5, 1)))
    rule = qwix.QuantizationRule(
        module_path="site",
        weight_qtype=qtype,
        act_qtype=qtype,
        tile_size=tile,
        weight_calibration_method=method,
    )
    quantized = apply(module, from_qwix(module, [rule]))
    size = round(256 * tile) if isinstance(tile, float) else tile
    kernel = module["site"].kernel[...]
    codes, w = qwix_levels(kernel, qtype, axis=0, tile=size, method=method)
    ours = quantized["site"].kernel.get_value().codes()
    np.testing.assert_array_equal(
        np.asarray(ours.qvalue, np.float32), np.asarray(codes.qvalue, np.float32)
    )
    np.testing.assert_array_equal(ours.scale, codes.scale)
    _, levels = qwix_levels(x, qtype, axis=1, tile=size)
    y = np.asarray(quantized["site"](jnp.asarray(x, jnp.float32)), np.float64)
    # Sums of 256 products in float32, and the rounding of each scale.
    limit = EPS * (256 + 16) * (abs(levels) @ abs(w))
    assert (abs(y - levels @ w) <= limit).all()
    assert (abs(y - x @ w) > limit).any()  # x is rounded


@pytest.mark.thorough
@OF_QWIX
def test_a_whole_model_computes_what_qwix_computes(model):
    fp8 = {"weight_qtype": "float8_e4m3fn", "act_qtype": "float8_e4m3fn"}
    rules = [
        qwix.QuantizationRule(module_path="einsum", op_names=("einsum",), weight_qtype="int8"),
        qwix.QuantizationRule(module_path="experts", op_names=("ragged_dot",), weight_qtype="int8"),
        qwix.QuantizationRule(module_path=r"layers.*", tile_size=64, **fp8),
        qwix.QuantizationRule(module_path="lm_head", weight_qtype="nf4", tile_size=32),
    ]
    chosen = from_qwix(model, rules)
    assert chosen.specs["einsum"] == chosen.specs["experts"] == Spec()
    assert chosen.specs["lm_head"] == Spec(weight="nf4", group=32)
    ours = apply(model, chosen)(TOKENS)
    theirs = qwix.quantize_model(model, qwix.PtqProvider(rules), TOKENS)(TOKENS)
    plain = model(TOKENS)
    # A sum rounded otherwise moves a number across a boundary of fp8 now and then.
    assert abs(ours - theirs).max() < 0.05 * abs(plain - theirs).max()


@pytest.mark.thorough
def test_minmax_is_qwix_s_where_a_group_holds_both_signs(model):
    rule = qwix.QuantizationRule(
        module_path="lm_head", weight_qtype="int8", weight_calibration_method="minmax"
    )
    quantized = apply(model, from_qwix(model, [rule]))
    theirs = qwix.quantize(
        model.lm_head.kernel[...], jnp.int8, channelwise_axes=[1], calibration_method="minmax"
    )
    ours = quantized.lm_head.kernel.get_value().codes()
    np.testing.assert_array_equal(ours.qvalue, theirs.qvalue)
    np.testing.assert_array_equal(ours.scale, theirs.scale)
    np.testing.assert_array_equal(ours.zero_point, theirs.zero_point)


@pytest.mark.thorough
@pytest.mark.parametrize("qtype", ["int4", "float8_e4m3fn"])
@pytest.mark.parametrize("site", ["layers/0/mlp/gate", "einsum", "experts"])
def test_what_is_trained_is_what_is_frozen_and_survives_a_file(model, site, qtype, tmp_path):
    rule = qwix.QuantizationRule(
        module_path=site,
        weight_qtype=qtype,
        act_qtype=qtype,
        tile_size=64,
        weight_calibration_method="rms,3",
    )
    trained = qat(model, from_qwix(model, [rule]), TOKENS)
    frozen = freeze(trained)
    # One site: what follows rounds nothing, so float sums alone differ.
    np.testing.assert_allclose(frozen(TOKENS), trained(TOKENS), rtol=1e-4, atol=1e-6)
    assert abs(model(TOKENS) - trained(TOKENS)).max() > 1e-3
    save(frozen, tmp_path / "model")
    again = load(tmp_path / "model", model)
    np.testing.assert_array_equal(again(TOKENS), frozen(TOKENS))


@pytest.mark.thorough
@OF_QWIX
def test_weights_beyond_the_range_have_no_gradient_as_in_qwix():
    rule = qwix.QuantizationRule(
        module_path="site",
        weight_qtype="int8",
        tile_size=64,
        weight_calibration_method="rms,1.2",
    )
    module = nnx.Dict(site=nnx.Linear(256, 24, use_bias=False, rngs=nnx.Rngs(1)))
    x = jax.random.normal(jax.random.key(2), (5, 256))
    trained = qat(module["site"], from_qwix(module["site"], [rename(rule)]), x)
    gradient = nnx.grad(lambda m: m(x).sum())(trained)["kernel"].get_value()
    w = np.asarray(module["site"].kernel[...], np.float64).reshape(4, 64, 24)
    bound = 1.2 * np.sqrt((w**2).mean(1, keepdims=True))
    inside = (abs(w) <= bound).reshape(256, 24)
    np.testing.assert_array_equal(np.asarray(gradient) != 0, inside)
    full = np.broadcast_to(np.asarray(x).sum(0)[:, None], (256, 24))
    np.testing.assert_allclose(np.asarray(gradient)[inside], full[inside], rtol=1e-5)
    theirs = qwix.quantize_model(module["site"], qwix.QtProvider([rename(rule)]), x)
    other = nnx.grad(lambda m: m(x).sum())(theirs)["kernel"].get_value()
    np.testing.assert_array_equal(np.asarray(other) != 0, inside)


def rename(rule):
    """The rule for a model that is the site."""
    return type(rule)(**{**vars(rule), "module_path": ".*"})


@pytest.mark.thorough
@pytest.mark.parametrize("weight, act", [("int4", "int4"), ("int8", "int4"), ("fp8", "fp8")])
def test_products_of_rounded_groups_conform(weight, act):
    from dovetail_quant.matmul.act import GroupedRows

    matmul = GroupedRows(act=act)
    check_matmul(matmul, Spec(weight=weight, act=act), Spec(weight=weight, act=act, group=32))


@pytest.mark.thorough
def test_rows_that_are_not_finite_say_so():
    module = nnx.Dict(site=nnx.Linear(64, 8, use_bias=False, rngs=nnx.Rngs(0)))
    for weight in ("int4", "fp8"):
        rule = qwix.QuantizationRule(module_path="site", weight_qtype=weight, act_qtype=weight)
        quantized = apply(module, from_qwix(module, [fp8_of(rule)]))
        x = jnp.ones((3, 64)).at[1, 5].set(jnp.nan).at[2, 7].set(jnp.inf)
        y = quantized["site"](x)
        assert np.isfinite(y[0]).all()
        assert not np.isfinite(y[1:]).any()


def fp8_of(rule):
    kind = "float8_e4m3fn" if rule.weight_qtype == "fp8" else rule.weight_qtype
    return type(rule)(**{**vars(rule), "weight_qtype": kind, "act_qtype": kind})


@pytest.mark.parametrize(
    "options, text",
    [
        ({"module_path": "mlp"}, "got module_path='mlp', which matches none; 'layers"),
        (
            {"module_path": r"layers_\d+/mlp"},
            "matches a module around 'layers_0/mlp/down' but none that multiplies; write "
            r"'layers_\\d+/mlp/.*'",
        ),
        ({"weight_qtype": "int2"}, "must be one of int8, int4, nf4, float8_e4m3fn, got 'int2'"),
        ({"act_qtype": "nf4"}, "act_qtype must be one of int8, int4, float8_e4m3fn, got 'nf4'"),
        ({"weight_qtype": None, "act_qtype": "int8"}, "act_qtype='int8' without weight_qtype in"),
        ({"act_static_scale": True}, "got act_static_scale=True in the rule '.*'; leave it out"),
        ({"act_calibration_method": "minmax"}, "got act_calibration_method='minmax' in"),
        ({"weight_calibration_method": "fixed,-1,1"}, "rms,F, got 'fixed,-1,1' in the rule"),
        ({"weight_calibration_method": "absmax,1.5"}, "with F up to 1, minmax or rms,F, got"),
        ({"weight_calibration_method": "rms"}, "minmax or rms,F, got 'rms'"),
        ({"tile_size": 96}, "a group must divide the inputs of its site, got group=96"),
        ({"bwd_qtype": "int8"}, "got bwd_qtype='int8' in the rule '.*'; leave it out, and for"),
        ({"bwd_stochastic_rounding": "uniform"}, "got bwd_stochastic_rounding='uniform'"),
    ],
)
def test_what_a_plan_lacks_is_refused_by_name(model, options, text):
    kind = qwix.QtRule if any(name.startswith("bwd") for name in options) else PUBLISHED.__class__
    rule = kind(**{"weight_qtype": "int8", **options})
    with pytest.raises(ValueError, match=re.escape(text)):
        from_qwix(model, [rule])


def test_a_rule_behind_others_is_refused(model):
    rules = [qwix.QuantizationRule(weight_qtype="int8"), PUBLISHED]
    with pytest.raises(ValueError, match=r"whose sites all go to rules before it; put it first"):
        from_qwix(model, rules)


@pytest.mark.thorough
def test_a_rule_without_types_leaves_its_sites_alone(model):
    rules = [
        qwix.QuantizationRule(module_path="einsum"),
        qwix.QuantizationRule(weight_qtype="int8"),
    ]
    chosen = from_qwix(model, rules)
    assert chosen.left_alone["einsum"] == "as its rule says"
    assert module_at(apply(model, chosen), "lm_head").kernel.get_value().spec == Spec()
