# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Content and cost of a Hugging Face directory, from its headers alone."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from dovetail_models import _elsewhere
from dovetail_models.build import AnyConfig
from dovetail_models.config.decoder import Config
from dovetail_models.describing.describe import Description, describe
from dovetail_models.flops import active, flops, kv_bytes
from dovetail_models.hf.load import plan
from dovetail_models.placing.shard import Rules

LENGTH = 4096  # tokens of a sequence, where the model is made for as many


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a decoder per token.

    Attributes:
        length: Tokens per sequence.
        flops_per_token: FLOPs of a forward pass.
        kv_bytes_per_token: Bytes in a bfloat16 cache, over all devices.
        kv_device_bytes_per_token: Bytes in a bfloat16 cache on one device.
        active_parameters: Parameters used for a token.
    """

    length: int
    flops_per_token: float
    kv_bytes_per_token: int
    kv_device_bytes_per_token: int
    active_parameters: int


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Inspection:
    """Content of a directory. Print it to read it.

    Attributes:
        config: Configuration of the model.
        description: Table of its parameters.
        cost: Cost per token; None for encoders.
    """

    config: AnyConfig
    description: Description
    cost: Cost | None

    def __repr__(self) -> str:
        return f"Inspection({self.config.family}, {self.description!r})"

    def __str__(self) -> str:
        named = {"family": self.config.family, **_settings(self.config)}
        named["parameters"] = f"{self.description.total.parameters:,}"
        if (cost := self.cost) is not None:
            sequence = f"per token of a sequence of {cost.length:,}"
            named["active parameters"] = f"{cost.active_parameters:,}"
            named["GFLOPs"] = f"{cost.flops_per_token / 1e9:,.3f} {sequence}, forward"
            named["cache"] = f"{cost.kv_bytes_per_token:,} bytes per token in bfloat16, "
            named["cache"] += f"{cost.kv_device_bytes_per_token:,} per device"
        lines = [f"{name:<18}{value}" for name, value in named.items()]
        return "\n".join([*lines, "", str(self.description)])

    def json(self) -> dict[str, Any]:
        """Returns plain values for `json.dumps`."""
        table = self.description
        return {
            "family": self.config.family,
            "config": dataclasses.asdict(self.config),
            "total": dataclasses.asdict(table.total),
            "modules": [dataclasses.asdict(total) for total in table.by_module()],
            "dtypes": [dataclasses.asdict(total) for total in table.by_dtype()],
            "cost": self.cost and dataclasses.asdict(self.cost),
            "parameters": [vars(row) | {"spec": row.spec and list(row.spec)} for row in table.rows],
        }


@_elsewhere.call
def inspect(
    path: str | Path,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    rules: Rules | None = None,
    length: int | None = None,
    allow: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
) -> Inspection:
    """Returns the configuration, parameters and cost of a model, from the headers of its files.

    Args:
        path: Hugging Face directory of a decoder or an encoder, or a Hub id, as for `load`.
        mesh: Mesh to plan for; may be abstract. None: one device.
        rules: Placement rules; see `shardings`. None: `RULES`.
        length: Tokens per sequence, for the cost of a decoder. None: 4096, or fewer if the model is
            made for fewer.
        allow: Unknown config.json keys to accept.
        ignore: Patterns of extra tensors to leave out, as for `load`.

    Raises:
        FileNotFoundError: config.json or a file is missing.
        ValueError: As for `load`, `length` is below 1, or the mesh does not divide a parameter.

    Example:

        >>> import tempfile
        >>> from dovetail_models import init, inspect, llama, save
        >>> path = tempfile.mkdtemp()
        >>> save(init(llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32), seed=0), path)
        >>> inspect(path)
        Inspection(llama, Description(12 rows, 7,248 parameters, 29 kB; print it))
        >>> inspect(path, length=8).cost.flops_per_token
        12800.0
    """
    model, _ = plan(Path(path), rules=rules, allow=allow, ignore=ignore)
    config, cost = model.config, None
    if isinstance(config, Config):
        length = min(LENGTH, config.max_length) if length is None else length
        if length < 1:
            raise ValueError(f"a sequence has at least 1 token, got length={length}: leave it out")
        forward = flops(config, tokens=length, length=length, training=False)
        cost = Cost(
            length=length,
            flops_per_token=forward / length,
            kv_bytes_per_token=kv_bytes(config, dtype=jnp.bfloat16),
            kv_device_bytes_per_token=kv_bytes(config, dtype=jnp.bfloat16, mesh=mesh, rules=rules),
            active_parameters=active(config),
        )
    description = describe(model, mesh=mesh, rules=rules)
    return Inspection(config=config, description=description, cost=cost)


def _settings(config: AnyConfig) -> dict[str, str]:
    """Returns the non-default fields of a configuration, each kind of layer once."""
    fields = _unusual(config)
    layers = Counter(fields.pop("layers", ()))
    texts = {name: _brief(x) for name, x in fields.items() if name not in ("family", "extra")}
    return texts | {f"{count} layers": _brief(layer) for layer, count in layers.items()}


def _brief(value: Any) -> str:
    if not dataclasses.is_dataclass(value):
        return str(value)
    fields = [f"{name}={_brief(item)}" for name, item in _unusual(value).items()]
    return f"{type(value).__name__}({', '.join(fields)})"


def _unusual(config: Any) -> dict[str, Any]:
    """Returns the fields with other values than their defaults."""
    fields = ((f.name, getattr(config, f.name), f.default) for f in dataclasses.fields(config))
    return {name: value for name, value, default in fields if value != default}
