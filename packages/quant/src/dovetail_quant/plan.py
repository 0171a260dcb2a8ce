# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which site gets which spec: rules by path, decided before anything is computed."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flax import nnx

from dovetail_quant._patterns import Patterns, each_of, matches, no_match
from dovetail_quant.sites import Site, sites
from dovetail_quant.spec import Spec

Rule = tuple[Patterns, Spec | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """specs: by the path of the site. left_alone: every other site, and why."""

    specs: Mapping[str, Spec]
    left_alone: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Numbers, strings and dicts alone; `Plan.from_json` takes them back."""
        specs = {path: dataclasses.asdict(spec) for path, spec in self.specs.items()}
        return {"specs": specs, "left_alone": dict(self.left_alone)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        """The plan of which `to_json` gave this."""
        specs = {path: Spec(**spec) for path, spec in data["specs"].items()}
        return cls(specs=specs, left_alone=dict(data["left_alone"]))

    def __str__(self) -> str:
        rows = [(path, _words(spec)) for path, spec in self.specs.items()]
        rows += [(path, f"left alone: {why}") for path, why in self.left_alone.items()]
        width = max((len(path) for path, _ in rows), default=0)
        return "\n".join(f"{path:<{width}}  {words}" for path, words in rows)


def plan(model: nnx.Module, rules: Sequence[Rule]) -> Plan:
    """The spec of each site, by the first rule whose pattern matches its path.

    A site that no rule matches is left alone, and the plan says so.

    Args:
        model: May be abstract (`nnx.eval_shape`).
        rules: Pairs of a pattern, or several, and a spec, or None for no quantization. Patterns are
            globs over paths, `layers.*.attn.{q,k}`: `*` within a segment, `**` for any number.

    Raises:
        ValueError: For a pattern that is not one or matches no site, a rule that is the first for
            no site or whose sites cannot be quantized, and a group that does not divide the inputs
            of a site.

        chosen = plan(model, [("**.mlp.*", Spec(weight="int4", group=32)), ("**", Spec())])
    """
    found = sites(model)
    _check_patterns(rules, found)
    specs: dict[str, Spec] = {}
    left_alone: dict[str, str] = {}
    used = set()
    for path, site in found.items():
        i = next((i for i, (p, _) in enumerate(rules) if matches(p, path)), None)
        used.add(i)
        spec = None if i is None else rules[i][1]
        if site.left_alone is not None:
            left_alone[path] = site.left_alone
        elif spec is None:
            left_alone[path] = "no rule matches" if i is None else "as its rule says"
        else:
            _check(site, spec)
            specs[path] = spec
    for i, (pattern, _) in enumerate(rules):
        if i not in used:
            raise ValueError(
                f"every rule must be the first for some site, got pattern={pattern!r}, whose sites "
                "all go to rules before it; put it first or drop it"
            )
    if rules and not specs:
        raise ValueError(
            f"a plan must quantize something, got rules for {len(found)} sites that are all left "
            f"alone: {'; '.join(f'{p}: {why}' for p, why in list(left_alone.items())[:3])}"
        )
    return Plan(specs=specs, left_alone=left_alone)


def _check_patterns(rules: Sequence[Rule], paths: Collection[str]) -> None:
    for patterns, _ in rules:
        for pattern in each_of(patterns):
            if not any(pattern.matches(path) for path in paths):
                raise ValueError(
                    f"every pattern of a plan must match a site, got {pattern.text!r}, "
                    f"{no_match(pattern, paths)}"
                )


def _check(site: Site, spec: Spec) -> None:
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
    return f"{spec.weight} by {group}, {spec.method}{act}{zero}"
