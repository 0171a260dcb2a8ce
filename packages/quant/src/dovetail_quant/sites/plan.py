# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rules by path that assign a spec to each site, before anything is computed."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from flax import nnx

from dovetail_quant import _elsewhere
from dovetail_quant._patterns import Patterns, matches, select
from dovetail_quant.codes.spec import Spec
from dovetail_quant.sites.sites import Site, selects, sites

Rule = tuple[Patterns, Spec | Callable[[Site], Spec] | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A spec for each site.

    Attributes:
        specs: Specs by the path of the site.
        left_alone: Every other site, with the reason.
    """

    specs: Mapping[str, Spec]
    left_alone: Mapping[str, str]

    @property
    def calibrates(self) -> bool:
        """Whether a method needs calibration."""
        return any(spec.method != "absmax" for spec in self.specs.values())

    def to_json(self) -> dict[str, Any]:
        """Returns numbers, strings and dicts alone, for `Plan.from_json`."""
        specs = {path: dataclasses.asdict(spec) for path, spec in self.specs.items()}
        return {"specs": specs, "left_alone": dict(self.left_alone)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        """Inverts `to_json`."""
        specs = {path: Spec(**spec) for path, spec in data["specs"].items()}
        return cls(specs=specs, left_alone=dict(data["left_alone"]))

    def __repr__(self) -> str:
        return f"Plan({len(self.specs)} sites, {len(self.left_alone)} left alone; print it)"

    def __str__(self) -> str:
        rows = [(path, _words(spec)) for path, spec in self.specs.items()]
        rows += [(path, f"left alone: {why}") for path, why in self.left_alone.items()]
        width = max((len(path) for path, _ in rows), default=0)
        return "\n".join(f"{path:<{width}}  {words}" for path, words in rows)


@_elsewhere.plan
def plan(model: nnx.Module, rules: Sequence[Rule]) -> Plan:
    """Assigns a spec to each site, by the first rule whose pattern selects it.

    A site without a rule is left alone, and the plan says so. Wildcards do not select embedding and
    head, which lose most; name them: `("{embed,lm_head}", Spec())`. `Site.role` tells them.

    Args:
        model: The model. It may be abstract (`nnx.eval_shape`).
        rules: Pairs of a pattern, or several, and a spec, a function from a `Site` to its spec, or
            None for no quantization. Patterns are globs over paths, `layers.*.attn.{q,k}`: `*`
            within a segment, `**` for any number.

    Returns:
        The plan. Print it to read it as a table.

    Raises:
        ValueError: A pattern is malformed or matches no site, a rule decides for no site, its sites
            cannot be quantized, or a group does not divide the inputs of a site.

    Example:

        >>> from flax import nnx
        >>> from dovetail_quant import Spec
        >>> rngs = nnx.Rngs(0)
        >>> model = nnx.Sequential(nnx.Linear(64, 32, rngs=rngs), nnx.LayerNorm(32, rngs=rngs))
        >>> list(plan(model, [("**", Spec(weight="int4", group=32))]).specs)
        ['layers.0']
    """
    by_path = sites(model)
    for patterns, _ in rules:
        select(patterns, by_path, rule="every pattern of a plan must match a site")
    specs: dict[str, Spec] = {}
    left_alone: dict[str, str] = {}
    used = set()
    for path, site in by_path.items():
        i = next((i for i, (p, _) in enumerate(rules) if selects(p, site)), None)
        used.add(i)
        rule = None if i is None else rules[i][1]
        if site.left_alone is not None:
            left_alone[path] = site.left_alone
        elif rule is None:
            left_alone[path] = _no_rule(site, rules) if i is None else "as its rule says"
        else:
            spec = rule if isinstance(rule, Spec) else rule(site)
            check_group(site, spec)
            specs[path] = spec
    _check_used(rules, used, by_path)
    if rules and not specs:
        raise ValueError(
            f"a plan must quantize something, got rules for {len(by_path)} sites that are all left "
            f"alone: {'; '.join(f'{p}: {why}' for p, why in list(left_alone.items())[:3])}; "
            "write ('**', Spec()) as the last rule"
        )
    return Plan(specs=specs, left_alone=left_alone)


def _no_rule(site: Site, rules: Sequence[Rule]) -> str:
    """Returns the reason against a site that no rule selects."""
    if site.role is None or not any(matches(patterns, site.path) for patterns, _ in rules):
        return "no rule matches"
    return f"{site.role}: named alone; write ({site.path!r}, Spec()) to quantize it"


def _check_used(rules: Sequence[Rule], used: Collection[Any], by_path: Mapping[str, Site]) -> None:
    for i, (patterns, _) in enumerate(rules):
        if i in used:
            continue
        if any(selects(patterns, site) for site in by_path.values()):
            raise ValueError(
                f"every rule must be the first for some site, got pattern={patterns!r}, whose "
                "sites all go to rules before it; put it first or drop it"
            )
        unnamed = next(path for path in by_path if matches(patterns, path))
        raise ValueError(
            f"embedding and head are quantized by name alone, got pattern={patterns!r}, which "
            f"matches only such sites; write ({unnamed!r}, Spec())"
        )


def check_group(site: Site, spec: Spec) -> None:
    """Raises ValueError unless the group divides the inputs of the site."""
    inputs = site.axes.sizes[1]
    if spec.group is not None and inputs % spec.group:
        fits = [g for g in (256, 128, 64, 32, 16, 8, 4, 2) if inputs % g == 0]
        raise ValueError(
            f"a group must divide the inputs of its site, got group={spec.group} for {site.path!r} "
            f"with {inputs} inputs; write group={fits[0] if fits else inputs}, or a rule of its own"
        )


def _words(spec: Spec) -> str:
    group = "each output" if spec.group is None else f"groups of {spec.group}"
    act = "" if spec.act is None else f", activations {spec.act}"
    zero = "" if spec.symmetric else ", zero points"
    zero += "" if spec.rms is None else f", range {spec.rms:g} root mean squares"
    zero += "" if spec.clip == 1 else f", range {spec.clip:g} of the largest"
    return f"{spec.weight} by {group}, {spec.method}{act}{zero}"
