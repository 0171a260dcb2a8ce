# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
r"""Plans from `qwix.QuantizationRule`s: regular expressions over module paths.

Qwix matches a rule against the whole path of the module that computes, joined by slashes:
`layers/3/mlp/gate` here, `layers_3/mlp/gate` in a Linen model of the same layers. Both forms are
tried, so rules for Linen models fit.

| rule | spec |
|---|---|
| weight_qtype | `weight`; None: the site is left alone |
| act_qtype int4, float8_e4m3fn | `act`: scales of each row and tile, as in Qwix |
| act_qtype int8 | `act`: one scale of 127 levels for each row, in tiles too |
| tile_size | `group`; a float is 1 / number of tiles |
| weight_calibration_method absmax, minmax | `symmetric` |
| absmax,F and rms,F | `clip`, `rms` |
| op_names | the kinds of sites |

Embeddings are lookups, which Qwix leaves float; a head is a product, and its rule holds.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import qwix
from flax import nnx

from dovetail_quant._patterns import near
from dovetail_quant.codes.spec import Act, Spec, Weight
from dovetail_quant.sites.plan import Plan, check_group
from dovetail_quant.sites.sites import Kind, Site, sites

_WEIGHTS: dict[str, Weight] = {
    "int8": "int8",
    "int4": "int4",
    "nf4": "nf4",
    "float8_e4m3fn": "fp8",
}
_ACTS: dict[str, Act] = {"int8": "int8", "int4": "int4", "float8_e4m3fn": "fp8"}
_OPS: dict[Kind, str] = {
    "linear": "dot_general",
    "general": "dot_general",
    "einsum": "einsum",
    "experts": "ragged_dot",
}


def from_qwix(model: nnx.Module, rules: Sequence[qwix.QuantizationRule]) -> Plan:
    r"""Returns the plan of Qwix's rules for a model. The first rule that matches a site decides.

    Args:
        model: The model. It may be abstract.
        rules: Rules. `module_path` must match the whole path of a site, such as
            `layers/\d+/mlp/.*` or `layers_\d+/mlp/.*`.

    Raises:
        ValueError: A rule matches no site, or has an option that this package lacks: other types,
            fixed ranges, static scales, quantized gradients, sparsity, or a tile that does not
            divide the inputs.

    Example:

        >>> from dovetail_quant import from_qwix
        >>> model = nnx.Dict(mlp=nnx.Linear(64, 32, rngs=nnx.Rngs(0)))
        >>> rule = qwix.QuantizationRule(module_path="mlp", weight_qtype="int4", tile_size=32)
        >>> from_qwix(model, [rule]).specs["mlp"].group
        32
    """
    by_path = sites(model)
    used: set[int | None] = set()
    specs, left_alone = {}, {}
    for path, site in by_path.items():
        i = next((i for i, rule in enumerate(rules) if _matches(rule, site)), None)
        spec = None if i is None or site.left_alone else _spec(rules[i], site)
        used.add(i)
        if spec is None:
            why = "Qwix rounds no lookups" if site.kind == "embed" else "no rule matches"
            left_alone[path] = site.left_alone or (why if i is None else "as its rule says")
        else:
            check_group(site, spec)
            specs[path] = spec
    for i, rule in enumerate(rules):
        if i not in used:
            raise ValueError(_unused(rule, rules[:i], by_path))
    return Plan(specs=specs, left_alone=left_alone)


def _paths(site: Site) -> tuple[str, str]:
    """Returns the path as Qwix sees it in NNX, and in a Linen model of the same layers."""
    path = site.path.replace(".", "/")
    return path, re.sub(r"/(\d+)(?=/|$)", r"_\1", path)


def _matches(rule: qwix.QuantizationRule, site: Site) -> bool:
    if site.kind is None or site.kind == "embed":
        return False
    named = not rule.op_names or _OPS[site.kind] in rule.op_names
    return named and any(re.fullmatch(rule.module_path, path) for path in _paths(site))


def _spec(rule: qwix.QuantizationRule, site: Site) -> Spec | None:
    """Returns the spec of a rule, or None for a site that it leaves float."""
    _check_lacking(rule)
    if rule.weight_qtype is None:
        if rule.act_qtype is not None:
            raise ValueError(
                f"activations are rounded where weights are, got act_qtype={rule.act_qtype!r} "
                f"without weight_qtype in the rule {rule.module_path!r}; give both, or neither"
            )
        return None
    inputs = site.axes.sizes[1]
    tile = rule.tile_size
    group = round(inputs * tile) if isinstance(tile, float) else tile
    options = {"weight": _type(rule, "weight_qtype", _WEIGHTS)} | _range(rule)
    if rule.act_qtype is not None:
        options["act"] = _type(rule, "act_qtype", _ACTS)
    return Spec(group=None if group == inputs else group, **options)


def _type(rule: qwix.QuantizationRule, field: str, known: dict[str, Any]) -> Any:
    value = getattr(rule, field)
    try:
        name = "nf4" if value == "nf4" else jnp.dtype(value).name
    except TypeError:
        name = value
    if name not in known:
        raise ValueError(
            f"{field} must be one of {', '.join(known)}, got {value!r} in the rule "
            f"{rule.module_path!r}; change it, or quantize with qwix.quantize_model"
        )
    return known[name]


def _range(rule: qwix.QuantizationRule) -> dict[str, Any]:
    """Returns the options of a spec for a calibration of weights."""
    method, *factors = rule.weight_calibration_method.lower().split(",")
    factor = float(factors[0]) if factors else None
    if method == "absmax" and (factor is None or 0 < factor <= 1):
        return {} if factor in (None, 1.0) else {"clip": factor}
    if method == "minmax" and factor in (None, 1.0):
        return {"symmetric": False}
    if method == "rms" and factor is not None:
        return {"rms": factor}
    raise ValueError(
        f"weight_calibration_method must be absmax, absmax,F with F up to 1, minmax or rms,F, got "
        f"{rule.weight_calibration_method!r} in the rule {rule.module_path!r}; write one of these"
    )


def _check_lacking(rule: qwix.QuantizationRule) -> None:
    """Raises ValueError for options of a rule without a counterpart."""
    lacking = {
        "act_static_scale": bool(rule.act_static_scale),
        "act_calibration_method": rule.act_calibration_method not in (None, "absmax"),
    }
    if isinstance(rule, qwix.QtRule):
        plain = qwix.QtRule()
        names = {f.name for f in dataclasses.fields(qwix.QtRule)}
        names -= {f.name for f in dataclasses.fields(qwix.QuantizationRule)}
        lacking |= {name: getattr(rule, name) != getattr(plain, name) for name in sorted(names)}
    if wrong := [name for name, has in lacking.items() if has]:
        raise ValueError(
            f"a plan has weights and activations rounded by their own ranges, got {wrong[0]}="
            f"{getattr(rule, wrong[0])!r} in the rule {rule.module_path!r}; leave it out, and for "
            "quantized gradients write qt(model, plan, ..., gradients=, stochastic=)"
        )


def _unused(
    rule: qwix.QuantizationRule, before: Sequence[qwix.QuantizationRule], found: dict[str, Site]
) -> str:
    text = f"every rule must decide for a site, got module_path={rule.module_path!r}"
    if any(_matches(rule, site) for site in found.values()):
        return f"{text}, whose sites all go to rules before it; put it first or drop it"
    paths = [_paths(site)[0] for site in found.values() if site.kind not in (None, "embed")]
    below = [path for path in paths if re.match(f"(?:{rule.module_path})/", path)]
    if below:
        return (
            f"{text}, which matches a module around {below[0]!r} but none that multiplies; write "
            f"{rule.module_path + '/.*'!r}"
        )
    return f"{text}, which matches none; {near(rule.module_path, paths)}"
