# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The usual plans of 8 and of 4 bits."""

import functools
from collections.abc import Sequence

from flax import nnx

from dovetail_quant.codes.spec import Method, Spec
from dovetail_quant.sites.plan import Plan, plan
from dovetail_quant.sites.sites import Site

# Inputs that share a scale of four bits: 128, as in most published models, or as many as divide.
GROUPS = (128, 64, 32, 16)


def plan_bits(
    model: nnx.Module,
    *,
    bits: int,
    group: int | None = None,
    method: Method | None = None,
    also: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Plan:
    """Plans 8 bits with one scale per output, or 4 bits with groups of inputs, for every matrix.

    Embedding and head stay float unless `also` names them; the plan says so.

    Args:
        model: The model; may be abstract.
        bits: 8 or 4.
        group: Inputs with one scale. Default: all inputs for 8 bits; for 4 bits `largest_group`.
        method: Default: absmax for 8 bits, gptq for 4.
        also: Name patterns of embedding and head, `("embed", "lm_head")`.
        skip: Name patterns of modules to leave in float.

    Returns:
        The plan. Print it to see the group of each site.

    Raises:
        ValueError: As `plan`, for example if a group does not divide the inputs of a matrix, or
            there is no `largest_group`.

    Example:

        >>> model = nnx.Sequential(*(nnx.Linear(n, 96, rngs=nnx.Rngs(0)) for n in (96, 256)))
        >>> print(plan_bits(model, bits=4))
        layers.0  int4 by groups of 32, gptq
        layers.1  int4 by groups of 128, gptq
    """
    if bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got bits={bits}: pass bits=8, which loses least")
    weight, usual = ("int8", "absmax") if bits == 8 else ("int4", "gptq")
    spec = functools.partial(Spec, weight=weight, method=method or usual)

    def grouped(site: Site) -> Spec:
        size = largest_group(site)
        if size is None:
            raise ValueError(
                f"4 bits share a scale among {GROUPS[-1]} inputs or more, and {site.path!r} has "
                f"{site.axes.sizes[1]}, which none of {GROUPS} divides; name its group=, or leave "
                f"it float with skip={site.path}"
            )
        return spec(group=size)

    rule = grouped if bits == 4 and group is None else spec(group=group)
    return plan(model, [*((name, None) for name in skip), (["**", *also], rule)])


def largest_group(site: Site) -> int | None:
    """Returns the largest of 128, 64, 32 and 16 that divides the inputs of a site, or None.

    Example:

        >>> model = nnx.Sequential(nnx.Linear(96, 32, rngs=nnx.Rngs(0)))
        >>> nf4 = lambda site: Spec(weight="nf4", group=largest_group(site))
        >>> print(plan(model, [("**", nf4)]))
        layers.0  nf4 by groups of 32, absmax
    """
    return next((size for size in GROUPS if site.axes.sizes[1] % size == 0), None)
