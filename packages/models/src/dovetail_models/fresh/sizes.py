# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fresh decoders of any family from a few sizes.

Embeddings are tied and windows are those of the family. A few sizes that a family names follow from
the others:

- Heads are `embed / heads` wide, and scores are divided by the square root of that width.
- Rope angles are not scaled, since the model is trained at its own length.
- Gemma 3: of six layers the last sees everything, or the last layer if there are fewer.
- DeepSeek: keys and values have a latent of a quarter of the width, queries have none, as in
  V2-Lite (2405.04434, appendix B). Half of a head's width more is rotated. The first layer is
  dense, and one expert is shared. Experts have no groups. The weights are V3's: scaled by 2.5.
"""

import dataclasses
import difflib
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

from dovetail_models.config.decoder import Config, LatentAttention
from dovetail_models.config.layer import Experts, Groups, divisors
from dovetail_models.config.rope import Rope
from dovetail_models.families import FAMILIES

_HEAD = 64  # numbers of a head, where the width allows it
_MLP, _EXPERTS, _ACTIVE = 512, 8, 2  # experts as in Mixtral
# Experts as the published models of the two families score them.
_LATENT_EXPERTS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"normalise": False},
    "deepseek_v3": {
        "score": "sigmoid",
        "selection_bias": True,
        "scale": 2.5,
        "groups": Groups(count=1, top_k=1, score="top2"),
    },
}


@functools.cache
def _builders() -> dict[str, Callable[..., Any]]:
    """Returns the builders of all families by their names, those of encoders too."""
    builders = (family.config_json.builder for family in FAMILIES.values())
    return {builder.__name__: builder for builder in builders}


def decoders() -> tuple[str, ...]:
    """Returns the names of the builders of decoders.

    Example:

        >>> from dovetail_models.fresh.sizes import decoders
        >>> decoders()[:3]
        ('deepseek_v2', 'deepseek_v3', 'gemma')
    """
    builders = _builders().items()
    return tuple(sorted(n for n, b in builders if typing.get_type_hints(b)["return"] is Config))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a decoder of any family. Those that are 0 follow from the family and the others.

    The defaults give a decoder that a CPU trains in minutes.

    Args:
        family: Name of its builder, such as "gemma3".
        embed: Width of the residual stream; even.
        depth: Layers.
        heads: Query heads. 0: as many as give a head up to 64 numbers.
        kv_heads: Key and value heads. 0: 1, where a family groups its heads.
        mlp: Width of the dense feed-forward layers. 0: 512.
        experts: Experts of a mixture, per layer. 0: 8.
        active_experts: Experts per token. 0: 2.
        expert_mlp: Width of an expert. 0: all active ones together are as wide as a dense layer.

    Raises:
        ValueError: The family is unknown or an encoder, sizes do not fit each other, or the family
            has no use for one.

    Example:

        >>> from dovetail_models import Sizes
        >>> sizes = Sizes(family="mixtral")
        >>> sizes.heads, sizes.experts, sizes.active_experts, sizes.expert_mlp, sizes.mlp
        (3, 8, 2, 256, 0)
        >>> config = Sizes(family="gemma3", embed=64).config(vocab_size=512, max_length=32)
        >>> config.family, config.layers[0].attention.head_dim, config.tie
        ('gemma3_text', 64, True)
    """

    family: str = "llama"
    embed: int = 192
    depth: int = 4
    heads: int = 0
    kv_heads: int = 0
    mlp: int = 0
    experts: int = 0
    active_experts: int = 0
    expert_mlp: int = 0

    def __post_init__(self) -> None:
        sizes = {name: value for name, value in vars(self).items() if name != "family"}
        least = {"embed": 2, "depth": 1}
        for name, value in sizes.items():
            if value < least.get(name, 0):
                raise ValueError(
                    f"{name} must be at least {least.get(name, 0)}, got {name}={value}: leave it "
                    "out"
                )
        if self.embed % 2:
            raise ValueError(
                f"embed must be even, got embed={self.embed}: pass embed={self.embed + 1}"
            )
        if not self.heads:
            widths = range(min(_HEAD, self.embed), 0, -1)
            width = next(d for d in widths if d % 2 == 0 and self.embed % d == 0)
            object.__setattr__(self, "heads", self.embed // width)
        self._check_heads()
        for name, value in self._defaults().items():
            object.__setattr__(self, name, getattr(self, name) or value)

    def _check_heads(self) -> None:
        if self.embed // 2 % self.heads:
            raise ValueError(
                f"heads must divide half of the width, got heads={self.heads}, embed={self.embed}: "
                f"pass one of {_listed(divisors(self.embed // 2))}, or another width"
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads must divide the query heads, got kv_heads={self.kv_heads}, "
                f"heads={self.heads}: pass one of {_listed(divisors(self.heads))}"
            )

    def _defaults(self) -> dict[str, int]:
        """Returns the sizes that the family takes. ValueError for a given one that it does not."""
        takes = _parameters(self.family)
        mixture, experts = "experts" in takes, self.experts or _EXPERTS
        active, mlp = self.active_experts or _ACTIVE, self.mlp or _MLP
        defaults = {"kv_heads": 1} if "kv_heads" in takes else {}
        if "attention" in takes or not mixture:  # latent attention comes with dense layers too
            defaults["mlp"] = _MLP
        if mixture:
            wide = {"expert_mlp": mlp // active}
            defaults |= {"experts": _EXPERTS, "active_experts": _ACTIVE, **wide}
        for name in ("kv_heads", "mlp", "experts", "active_experts", "expert_mlp"):
            if getattr(self, name) and name not in defaults:
                raise ValueError(
                    f"{name} must be an option of the family, got {name}={getattr(self, name)}, "
                    f"family={self.family}, {_reason(name, mixture=mixture)}"
                )
        if mixture and active > experts:
            raise ValueError(
                f"active_experts must be at most the experts, got active_experts={active}, "
                f"experts={experts}: pass more experts, or active_experts={experts}"
            )
        if mixture and not self.expert_mlp and mlp % active:
            raise ValueError(
                f"active_experts must divide the width of a dense layer, got active_experts="
                f"{active}, mlp={mlp}: pass expert_mlp= the width of an expert"
            )
        return defaults

    def config(self, *, vocab_size: int, max_length: int) -> Config:
        """Returns the configuration. It has no ids of special tokens.

        Args:
            vocab_size: Rows of the embedding.
            max_length: Positions.
        """
        takes, width = _parameters(self.family), self.embed // self.heads
        offered: dict[str, Any] = {
            "vocab_size": vocab_size,
            "embed": self.embed,
            "depth": self.depth,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": width,
            "query_scalar": float(width),
            "rope_scaling": None,
            "pattern": min(6, max(2, self.depth)),
            "tie": True,
            "max_length": max_length,
            "mlp": self.mlp or self.expert_mlp,
        }
        if "attention" in takes:
            offered |= self._latent(width)
        else:
            offered |= {"experts": self.experts, "top_k": self.active_experts}
        build = _builders()[self.family]
        return build(**{name: value for name, value in offered.items() if name in takes})

    def _latent(self, width: int) -> dict[str, Any]:
        """Returns the arguments of a family with latent attention."""
        attention = LatentAttention(
            heads=self.heads,
            q_rank=None,
            kv_rank=-(-self.embed // 4),
            nope_dim=width,
            rope_dim=2 * -(-width // 4),  # rotated in pairs
            v_dim=width,
            rope=Rope(theta=10_000.0, interleaved=True),
        )
        experts = Experts(
            count=self.experts,
            top_k=self.active_experts,
            hidden=self.expert_mlp,
            shared=self.expert_mlp,
            **_LATENT_EXPERTS[self.family],
        )
        return {"attention": attention, "experts": experts, "dense": min(1, self.depth - 1)}


def _parameters(family: str) -> typing.Mapping[str, inspect.Parameter]:
    """Returns the parameters of a builder. ValueError for an encoder and an unknown name."""
    known = decoders()
    if family not in known:
        near = difflib.get_close_matches(family, known, n=1)
        advice = f": did you mean {near[0]}? Pass" if near else ": pass"
        if family in _builders():
            advice = ", an encoder, which predicts no next token: pass"
        raise ValueError(
            f"family must be a decoder of dovetail_models, got family={family}{advice} one of "
            f"{_listed(known)}"
        )
    return inspect.signature(_builders()[family]).parameters


def _listed(values: typing.Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _reason(name: str, *, mixture: bool) -> str:
    if name == "kv_heads":
        return "whose heads have keys and values of their own: leave it out"
    if mixture:
        return "whose feed-forward layers are all mixtures: pass expert_mlp= instead"
    return "which is no mixture of experts: leave it out, or pass family=mixtral, for example"
