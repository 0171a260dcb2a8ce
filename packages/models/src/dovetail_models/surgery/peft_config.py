# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""PEFT's adapter_config.json: reading, checking and writing its keys.

Every key is used, known to alter no logit, or must be off (null, false, 0 or empty). An unsupported
feature of PEFT, even a future one, is therefore never ignored. Source: the fields of `LoraConfig`
in PEFT 0.18 and 0.21.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

_USED = frozenset(
    {"peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias"}
    | {"init_lora_weights"}
)
# Provenance, training, layout of the base, and targets (known from the tensors).
_INERT = frozenset(
    {"auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "exclude_modules"}
    | {"fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout"}
    | {"megatron_core", "peft_version", "qalora_group_size", "revision", "target_modules"}
    | {"task_type"}
)
# Other values alter the weights of the base.
_INITS = (True, False, None, "gaussian")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """The adapter of one projection.

    Attributes:
        rank: Its rank.
        alpha: Its alpha.
    """

    rank: int
    alpha: float | int


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Ranks and alphas of all projections.

    An entry is a regular expression and a value. It applies to the names whose end it matches.

    Attributes:
        default: Rank and alpha of projections without an entry.
        ranks: Entries for ranks.
        alphas: Entries for alphas.
        rslora: The scale is alpha / sqrt(rank).
    """

    default: Site
    ranks: tuple[tuple[str, int], ...]
    alphas: tuple[tuple[str, float | int], ...]
    rslora: bool

    def site(self, name: str) -> Site:
        """Returns the adapter of the projection `name`. The first matching entry decides."""
        rank = _lookup(self.ranks, name, self.default.rank)
        return Site(rank=rank, alpha=_lookup(self.alphas, name, self.default.alpha))


def read_config(keys: Mapping[str, Any]) -> AdapterConfig:
    """Parses the keys of adapter_config.json.

    Raises:
        ValueError: Some keys are unsupported; the message names all of them.
    """
    wrong = {}
    for name, value in keys.items():
        understood = name in _USED or name in _INERT or not value
        if not understood or (name == "bias" and value != "none"):
            wrong[name] = value
    if keys.get("peft_type") != "LORA":
        wrong["peft_type"] = keys.get("peft_type")
    if keys.get("init_lora_weights", True) not in _INITS:
        wrong["init_lora_weights"] = keys["init_lora_weights"]
    if wrong:
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(wrong.items()))
        raise ValueError(
            "adapter_config.json must describe plain LoRA (peft_type='LORA', bias='none', "
            f"init_lora_weights one of {_INITS}, all else off), got {listed}. Fold the adapter "
            "into its base with PEFT's merge_and_unload and load the result."
        )
    default = Site(rank=_number(keys, "r"), alpha=_number(keys, "lora_alpha"))
    ranks, alphas = (tuple((keys.get(f"{n}_pattern") or {}).items()) for n in ("rank", "alpha"))
    rslora = bool(keys.get("use_rslora"))
    return AdapterConfig(default=default, ranks=ranks, alphas=alphas, rslora=rslora)


def write_config(
    sites: Mapping[str, Site],
    *,
    targets: list[str],
    rslora: bool,
    transposed: bool,
    base: str | None,
) -> dict[str, Any]:
    """Returns the keys of adapter_config.json.

    Args:
        sites: Adapters by projection name.
        targets: Value of `target_modules`.
        rslora: The scale is alpha / sqrt(rank).
        transposed: The base stores kernels as [in, out] (GPT-2).
        base: Name or path of the base model, or None.
    """
    rank = collections.Counter(site.rank for site in sites.values()).most_common(1)[0][0]
    alpha = collections.Counter(site.alpha for site in sites.values()).most_common(1)[0][0]
    return {
        "alpha_pattern": {n: s.alpha for n, s in sites.items() if s.alpha != alpha},
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": transposed,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {n: s.rank for n, s in sites.items() if s.rank != rank},
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": rslora,
    }


def _number(keys: Mapping[str, Any], name: str) -> Any:
    value = keys.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(
            f"adapter_config.json must hold a number above 0 under {name!r}, got {name}={value!r}. "
            "Restore the file that PEFT wrote beside the tensors."
        )
    return value


def _lookup(entries: tuple[tuple[str, Any], ...], name: str, default: Any) -> Any:
    for pattern, value in entries:
        if re.search(rf"(^|\.)({pattern})$", name):
            return value
    return default
