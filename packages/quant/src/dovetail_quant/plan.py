# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which site gets which spec: rules by path, decided before anything is computed."""

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from dovetail_quant.sites import Site, sites
from dovetail_quant.spec import Spec

Rule = tuple[str, Spec | None]


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
    """The plan of `rules`: pairs of a regular expression and a spec, or None for no quantization.

    The first that matches the whole path of a site decides. A site that none matches is left alone,
    and the plan says so. The model may be abstract (`nnx.eval_shape`).

    Raises ValueError for a rule that is the first for no site, a rule whose sites cannot be
    quantized, and a group that does not divide the inputs of a site.

        chosen = plan(model, [(r".*\\.mlp\\..*", Spec(weight="int4", group=32)), (".*", Spec())])
    """
    found = sites(model)
    specs: dict[str, Spec] = {}
    left_alone: dict[str, str] = {}
    used = set()
    for path, site in found.items():
        i = next((i for i, (p, _) in enumerate(rules) if re.fullmatch(p, path)), None)
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
            near = difflib.get_close_matches(pattern, list(found), n=3, cutoff=0.0)
            raise ValueError(
                f"every rule must be the first for some site, got pattern={pattern!r}, which is "
                f"for none of {len(found)}; the nearest paths: {', '.join(near)}"
            )
    if rules and not specs:
        raise ValueError(
            f"a plan must quantize something, got rules for {len(found)} sites that are all left "
            f"alone: {'; '.join(f'{p}: {why}' for p, why in list(left_alone.items())[:3])}"
        )
    return Plan(specs=specs, left_alone=left_alone)


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
