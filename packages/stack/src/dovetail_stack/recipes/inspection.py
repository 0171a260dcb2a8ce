# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Content and cost of a Hugging Face directory, from its headers alone."""

import dataclasses
import difflib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from dovetail_models import (
    RULES,
    Config,
    Decoder,
    Description,
    abstract,
    active,
    describe,
    flops,
    kv_bytes,
    load,
    load_encoder,
)

LENGTH = 4096  # tokens of a sequence, where the model is made for as many


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a decoder per token.

    Attributes:
        length: Length of the sequences.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """Content of a directory.

    Attributes:
        config: Configuration of the model.
        description: Table of its parameters.
        cost: Cost per token; None for encoders.
    """

    config: Any
    description: Description
    cost: Cost | None

    def __str__(self) -> str:
        total = self.description.total
        lines = [f"{'family':<18}{self.config.family}"]
        lines += [f"{name:<18}{value}" for name, value in settings(self.config).items()]
        lines += [f"{'parameters':<18}{total.parameters:,}"]
        if self.cost is not None:
            cost = self.cost
            per = f"per token of a sequence of {cost.length:,}"
            lines += [
                f"{'active parameters':<18}{cost.active_parameters:,}",
                f"{'GFLOPs':<18}{cost.flops_per_token / 1e9:,.3f} {per}, forward",
                f"{'cache':<18}{cost.kv_bytes_per_token:,} bytes per token in bfloat16, "
                f"{cost.kv_device_bytes_per_token:,} per device",
            ]
        return "\n".join([*lines, "", str(self.description)])

    def json(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        table = self.description
        groups = {"modules": table.by_module(), "dtypes": table.by_dtype()}
        return {
            "family": self.config.family,
            "config": dataclasses.asdict(self.config),
            "total": dataclasses.asdict(table.total),
            **{name: [dataclasses.asdict(t) for t in totals] for name, totals in groups.items()},
            "cost": self.cost and dataclasses.asdict(self.cost),
            "parameters": [
                dataclasses.asdict(row) | {"spec": row.spec and list(row.spec)}
                for row in table.rows
            ],
        }


def inspect(
    path: Path, *, mesh: AbstractMesh | None = None, length: int | None = None
) -> Inspection:
    """Inspects a directory. Reads only the headers of its files.

    Args:
        path: Hugging Face directory.
        mesh: Abstract mesh on which to place the parameters.
        length: Length of the sequences for the cost. Default: `LENGTH`, or the model's maximum.

    Raises:
        ValueError: `length` is below 1, or the mesh does not divide the parameters.
    """
    model = abstract(path)
    cost = None
    if isinstance(model.config, Config):
        length = min(LENGTH, model.config.max_length) if length is None else length
        if length < 1:
            raise ValueError(f"a sequence has at least 1 token, got length={length}: leave it out")
        cost = Cost(
            length=length,
            flops_per_token=flops(model.config, tokens=length, length=length, training=False)
            / length,
            kv_bytes_per_token=kv_bytes(model.config, dtype=jnp.bfloat16),
            kv_device_bytes_per_token=kv_bytes(model.config, dtype=jnp.bfloat16, mesh=mesh),
            active_parameters=active(model.config),
        )
    return Inspection(config=model.config, description=describe(model, mesh=mesh), cost=cost)


def settings(config: Any) -> dict[str, str]:
    """Returns the non-default fields of a configuration, each kind of layer once."""
    fields = dict(_unusual(config))
    layers = Counter(fields.pop("layers", ()))
    texts = {
        name: _brief(value) for name, value in fields.items() if name not in ("family", "extra")
    }
    return texts | {f"{count} layers": _brief(layer) for layer, count in layers.items()}


def _brief(value: Any) -> str:
    if not dataclasses.is_dataclass(value):
        return str(value)
    parts = [f"{name}={_brief(item)}" for name, item in _unusual(value)]
    return f"{type(value).__name__}({', '.join(parts)})"


def _unusual(config: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of the fields with other values than their defaults."""
    for field in dataclasses.fields(config):
        if getattr(config, field.name) != field.default:
            yield field.name, getattr(config, field.name)


def parse_mesh(text: str) -> AbstractMesh:
    """Parses `fsdp=8,tensor=2` into an abstract mesh. Raises ValueError for unknown axes."""
    known = {
        axis for _, axes in RULES for axis in ((axes,) if isinstance(axes, str) else axes or ())
    }
    axes: dict[str, int] = {}
    for entry in text.split(","):
        name, _, size = entry.partition("=")
        if name not in known or name in axes or not size.isdigit() or int(size) < 1:
            near = difflib.get_close_matches(name, sorted(known - {name}), n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(
                f"a mesh is axes among {', '.join(sorted(known))}, each once with its size, as in "
                f"fsdp=8,tensor=2; got {entry!r} in {text!r}{meant}"
            )
        axes[name] = int(size)
    kinds = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def read(path: Path, *, dtype: str | None = None) -> Any:
    """Reads a decoder or encoder to the host's memory, cast to `dtype` if given."""
    reader = load if isinstance(abstract(path), Decoder) else load_encoder
    with jax.default_device(jax.devices("cpu")[0]):
        return reader(path, dtype=dtype and jnp.dtype(dtype))
