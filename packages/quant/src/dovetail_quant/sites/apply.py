# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Installation of quantized kernels at the sites of a plan."""

from typing import Any

import jax
from flax import nnx
from qwix import QArray

from dovetail_quant import _elsewhere
from dovetail_quant.codes.layout import PackedWeights
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.api import Matmul, MatmulOption
from dovetail_quant.matmul.choose import product_of
from dovetail_quant.methods import absmax
from dovetail_quant.sites.calibration import Calibration
from dovetail_quant.sites.embed import QuantizedEmbed, lookup
from dovetail_quant.sites.kernel import (
    Kernel,
    Promote,
    QuantizedParam,
    dot_general,
    einsum,
    ragged_dot,
)
from dovetail_quant.sites.modules import copied, module_at, replace
from dovetail_quant.sites.placing import Place, place_codes, place_divisor, place_of, place_prepared
from dovetail_quant.sites.plan import Plan
from dovetail_quant.sites.sites import Site, sites


@jax.transfer_guard("allow")
@_elsewhere.apply
def apply(model: nnx.Module, plan: Plan | Calibration, *, matmul: MatmulOption = "auto") -> Any:
    """Returns a new module, quantized as `plan` says. The rest is shared with `model`.

    Args:
        model: The float model.
        plan: A plan of this model, or a calibration, which contains one.
        matmul: Product of all sites. "auto" is the best installed one for platform, rows and spec,
            "own" the best of this package alone, without compiled code of others (for `jax.export`,
            say). Or a `Matmul`.

    Raises:
        ValueError: The plan belongs to another model, its method needs calibration, `matmul` is an
            unknown string, or it and a spec disagree about rounding activations.
        TypeError: `matmul` is not a product.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_quant import plan
        >>> model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))
        >>> quantized = apply(model, plan(model, [("**", Spec(weight="int8"))]))
        >>> quantized(jnp.ones((3, 64))).shape
        (3, 32)
    """
    specs = plan.plan.specs if isinstance(plan, Calibration) else plan.specs
    by_path = sites(model)
    missing = [path for path in specs if path not in by_path or by_path[path].left_alone]
    if missing:
        raise ValueError(
            f"a plan must be of the model that it is applied to, got {missing[0]!r}, one of "
            f"{len(missing)} paths that are no site of this one; call plan(model, rules)"
        )
    quantized = copied(model)
    for path, spec in specs.items():
        if isinstance(plan, Calibration):
            codes, scale = plan.sites[path].codes, plan.sites[path].scale
        else:
            codes, scale = _nearest(model, by_path[path], spec), None
        install(quantized, by_path[path], codes, spec=spec, scale=scale, matmul=matmul)
    return quantized


def _nearest(model: nnx.Module, site: Site, spec: Spec) -> QArray:
    if spec.method != "absmax":
        raise ValueError(
            f"method={spec.method!r} needs statistics, got a plan alone for {site.path!r}; write "
            "apply(model, calibrate(model, plan, batches))"
        )
    weight = getattr(module_at(model, site.path), site.parameter)[...]
    return absmax.absmax(site.axes.fold(weight), spec)


def install(
    model: nnx.Module,
    site: Site,
    codes: QArray | PackedWeights,
    *,
    spec: Spec,
    scale: Any = None,
    matmul: MatmulOption = "auto",
    place: Place | None = None,
) -> None:
    """Replaces the parameter of a site by codes.

    Args:
        model: The model to change.
        site: The site.
        codes: Codes [K, N], or [B, K, N], or packed.
        spec: Their spec.
        scale: Divisor of x, f32[K] or f32[B, K]; None for none.
        matmul: As in `apply`.
        place: Placement on a mesh. Default: that of the parameter.
    """
    module = module_at(model, site.path)
    before = getattr(module, site.parameter)
    product = product_of(matmul, spec)
    _check_product(product, spec, site.path)
    prepare = jax.vmap(product.prepare) if site.axes.batch else product.prepare
    if place is None:
        place = place_of(before.get_value(), site.axes, site.path)
    value = Kernel(
        prepared=place_prepared(prepare(place_codes(codes, place)), place),
        scale=place_divisor(scale, place),
        axes=site.axes,
        spec=spec,
        matmul=product,
        dtype=before.get_value().dtype,
    )
    after = QuantizedParam(value, **before.get_metadata())
    if isinstance(module, nnx.Embed):
        replace(model, site.path, QuantizedEmbed(module, after))
        return
    setattr(module, site.parameter, after)
    for name, function in _operations(module, site).items():
        setattr(module, name, function)


def _check_product(product: Any, spec: Spec, path: str) -> None:
    if not isinstance(product, Matmul):
        raise TypeError(
            "a product has prepare, codes, act and a call, got "
            f"{type(product).__name__}; write matmul='auto', or a class with the methods of Blocked"
        )
    if product.act != spec.act:
        raise ValueError(
            f"a product rounds activations as its spec says, got act={product.act!r} of "
            f"{type(product).__name__} and act={spec.act!r} of {path!r}; write Spec(act="
            f"{product.act!r}), or pass another matmul"
        )


def _operations(module: Any, site: Site) -> dict[str, Any]:
    """Returns the attributes of a module that multiply, adapted to a quantized kernel."""
    if site.kind == "experts":
        return {"ragged_dot": ragged_dot}
    if site.kind == "embed":
        return {"lookup": lookup, "dot_general": dot_general}
    product = {"einsum_op": einsum} if site.kind == "einsum" else {"dot_general": dot_general}
    return {**product, "promote_dtype": Promote(module.promote_dtype)}
