# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A module with quantized kernels in the places that a plan names."""

from typing import Any

import jax
from flax import nnx
from qwix import QArray

from dovetail_quant.kernel import Kernel, Promote, QuantizedParam, dot_general, einsum, ragged_dot
from dovetail_quant.matmul.api import Matmul
from dovetail_quant.matmul.choose import Auto
from dovetail_quant.methods import absmax
from dovetail_quant.plan import Plan
from dovetail_quant.sites import Site, module_at, sites
from dovetail_quant.spec import Spec


def apply(model: nnx.Module, plan: Plan, *, matmul: Matmul | None = None) -> Any:
    """A new module, quantized as `plan` says; what is not quantized is shared with `model`.

    matmul: the product of all sites; by default `Auto`, which chooses for platform, rows and spec.

    Raises ValueError for a plan of another model, or one whose method needs calibration.

        small = apply(model, plan(model, [(".*", Spec(weight="int8"))]))
    """
    found = sites(model)
    missing = [path for path in plan.specs if path not in found or found[path].left_alone]
    if missing:
        raise ValueError(
            f"a plan must be of the model that it is applied to, got {missing[0]!r}, one of "
            f"{len(missing)} paths that are no site of this one; call plan(model, rules)"
        )
    # New variables around the same arrays, where a clone would copy them.
    graphdef, state = nnx.split(model)
    quantized = nnx.merge(graphdef, jax.tree.map(lambda x: x, state))
    for path, spec in plan.specs.items():
        if spec.method != "absmax":
            raise ValueError(
                f"method={spec.method!r} needs statistics, got a plan alone for {path!r}; write "
                "apply(model, calibrate(model, plan, batches))"
            )
        module, site = module_at(quantized, path), found[path]
        codes = absmax.absmax(site.axes.fold(module.kernel[...]), spec)
        install(module, site, codes, spec=spec, matmul=matmul)
    return quantized


def install(
    module: Any,
    site: Site,
    codes: QArray,
    *,
    spec: Spec,
    scale: Any = None,
    matmul: Matmul | None = None,
) -> None:
    """Puts the codes [K, N], or [B, K, N], in the place of the module's kernel."""
    product = Auto(spec=spec) if matmul is None else matmul
    prepare = jax.vmap(product.prepare) if site.axes.batch else product.prepare
    before = module.kernel
    value = Kernel(
        prepared=prepare(codes),
        scale=scale,
        axes=site.axes,
        spec=spec,
        matmul=product,
        dtype=before[...].dtype,
    )
    module.kernel = QuantizedParam(value, **before.get_metadata())
    if site.kind == "experts":
        module.ragged_dot = ragged_dot
        return
    module.promote_dtype = Promote(module.promote_dtype)
    if site.kind == "einsum":
        module.einsum_op = einsum
    else:
        module.dot_general = dot_general
