# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face directory: what it holds and costs, from its headers alone, and rewritten."""

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
    save,
)

LENGTH = 4096  # tokens of a sequence, where the model is made for as many
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a decoder, per token of sequences of `length`: operations of a forward pass, and the
    bytes that a bfloat16 cache holds, in all and on one device; and the parameters that a token
    meets."""

    length: int
    flops_per_token: float
    kv_bytes_per_token: int
    kv_device_bytes_per_token: int
    active_parameters: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a directory holds. `cost` is None for encoders."""

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
        """The same, of plain values."""
        found = self.description
        groups = {"modules": found.by_module(), "dtypes": found.by_dtype()}
        return {
            "family": self.config.family,
            "config": dataclasses.asdict(self.config),
            "total": dataclasses.asdict(found.total),
            **{name: [dataclasses.asdict(t) for t in totals] for name, totals in groups.items()},
            "cost": self.cost and dataclasses.asdict(self.cost),
            "parameters": [
                dataclasses.asdict(row) | {"spec": row.spec and list(row.spec)}
                for row in found.rows
            ],
        }


def inspect(
    path: Path, *, mesh: AbstractMesh | None = None, length: int | None = None
) -> Inspection:
    """Reads headers alone. `mesh` is the one that the parameters are planned on; `length` is that
    of the sequences whose cost is told, by default `LENGTH` or what the model is made for.

    Raises ValueError for a length below 1 or a mesh that does not divide the parameters.
    """
    model = abstract(path)
    cost = None
    if isinstance(model.config, Config):
        length = min(LENGTH, model.config.max_length) if length is None else length
        if length < 1:
            raise ValueError(f"a sequence has at least one token, got length={length}")
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
    """The fields of a configuration that are not as usual, each kind of layer once."""
    found = dict(_unusual(config))
    layers = Counter(found.pop("layers", ()))
    told = {name: _brief(value) for name, value in found.items() if name not in ("family", "extra")}
    return told | {f"{count} layers": _brief(layer) for layer, count in layers.items()}


def _brief(value: Any) -> str:
    if not dataclasses.is_dataclass(value):
        return str(value)
    parts = [f"{name}={_brief(part)}" for name, part in _unusual(value)]
    return f"{type(value).__name__}({', '.join(parts)})"


def _unusual(config: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of the fields that do not have their default."""
    for field in dataclasses.fields(config):
        if getattr(config, field.name) != field.default:
            yield field.name, getattr(config, field.name)


def parse_mesh(text: str) -> AbstractMesh:
    """The mesh of `fsdp=8,tensor=2`, without devices; ValueError for an axis that no rule names."""
    known = {
        axis for _, axes in RULES for axis in ((axes,) if isinstance(axes, str) else axes or ())
    }
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name not in known or name in axes or not size.isdigit() or int(size) < 1:
            near = difflib.get_close_matches(name, sorted(known - {name}), n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(
                f"a mesh is axes among {', '.join(sorted(known))}, each once with its size, as in "
                f"fsdp=8,tensor=2; got {part!r} in {text!r}{meant}"
            )
        axes[name] = int(size)
    kinds = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def read(path: Path, *, dtype: str | None = None) -> Any:
    """The decoder or encoder in a directory, in the host's memory, cast to `dtype` if given."""
    reader = load if isinstance(abstract(path), Decoder) else load_encoder
    with jax.default_device(jax.devices("cpu")[0]):
        return reader(path, dtype=dtype and jnp.dtype(dtype))


def write(model: Any, out: Path, *, like: Path, file_bytes: int) -> None:
    """The model as a new directory, with the tokenizer of `like` if it has one."""
    tokenizer = any((like / name).is_file() for name in TOKENIZERS)
    save(model, out, like=like if tokenizer else None, file_bytes=file_bytes)
