# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face directory as a decoder, each device reading its own bytes."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from dovetail_models.config import Config
from dovetail_models.decoder import Decoder
from dovetail_models.families import FAMILIES
from dovetail_models.hf import safetensors
from dovetail_models.hf.config import parse
from dovetail_models.hf.ops import Op, Slices
from dovetail_models.hf.table import Family, dotted, is_buffer, near, sources
from dovetail_models.init import outline
from dovetail_models.shard import RULES, Rules, shardings

INDEX = "model.safetensors.index.json"


def load(
    path: str | Path,
    *,
    mesh: Mesh | None = None,
    rules: Rules = RULES,
    dtype: DTypeLike | None = None,
    allow: tuple[str, ...] = (),
) -> Decoder:
    """The decoder in a Hugging Face directory (config.json, *.safetensors), placed on `mesh`.

    Parameters keep the dtype of the file unless `dtype` casts them. Without a mesh they lie on the
    default device, uncommitted. `allow` names keys of config.json that this library does not know
    and that you know to alter nothing. On a CPU the files may back the parameters: never alter
    them in place.

    Raises ValueError for tensors that are missing, unexpected or of another shape (all of them in
    one message), for an unknown family or config key, and for a damaged file.
    """
    model, specs, names = _open(Path(path), rules=rules, allow=allow)
    _place(model, mesh, rules)
    views = safetensors.views(specs)

    def read(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        name, op = names[dotted(path)]
        struct = param.get_value()
        return param.replace(_array(views[name], op, struct, dtype or struct.dtype))

    state = nnx.map_state(read, nnx.state(model, nnx.Param))
    nnx.update(model, jax.block_until_ready(state))
    return model


def abstract(
    path_or_config: str | Path | Config,
    *,
    mesh: Mesh | None = None,
    rules: Rules = RULES,
    allow: tuple[str, ...] = (),
) -> Decoder:
    """The decoder of a directory or a `Config`, with a `jax.ShapeDtypeStruct` for each parameter.

    Of the files only headers are read. With a mesh each struct has its sharding.
    """
    if isinstance(path_or_config, Config):
        model = outline(path_or_config, rules=rules)
    else:
        model, _, _ = _open(Path(path_or_config), rules=rules, allow=allow)
    _place(model, mesh, rules)
    return model


def _open(
    path: Path, *, rules: Rules, allow: tuple[str, ...]
) -> tuple[Decoder, dict[str, safetensors.Spec], dict[str, tuple[str, Op]]]:
    """(outline with the dtypes of the files, tensors that it needs, {leaf: (tensor, op)})."""
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"A model is a directory with config.json and *.safetensors, got path={str(path)!r}. "
            "Pass the directory that save or save_pretrained wrote."
        )
    config = parse(json.loads((path / "config.json").read_text("utf-8")), allow=allow)
    family = FAMILIES[config.family]
    specs = {n: spec for file in _files(path) for n, spec in safetensors.header(file).items()}
    specs = _without_buffers(specs, family, tie=config.tie)
    model = outline(config, rules=rules)
    state = nnx.state(model, nnx.Param)
    params = {dotted(leaf): param for leaf, param in nnx.to_flat_state(state)}
    names = sources(family.table, params)
    shapes = {name: op.shape(params[leaf].shape) for leaf, (name, op) in names.items()}
    _check(shapes, {name: spec.shape for name, spec in specs.items()})

    def typed(leaf: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        spec = specs[names[dotted(leaf)][0]]
        return param.replace(jax.ShapeDtypeStruct(param.shape, safetensors.dtype(spec)))

    nnx.update(model, nnx.map_state(typed, state))
    return model, specs, names


def _files(path: Path) -> list[Path]:
    names = ["model.safetensors"]
    if (path / INDEX).is_file():
        index = json.loads((path / INDEX).read_text("utf-8"))
        names = sorted(set(index["weight_map"].values()))
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"The directory must hold {names}, got {str(path)!r} without {missing}. Fetch those "
            "files; weights in another format have to be converted to safetensors first."
        )
    return [path / name for name in names]


def _without_buffers(
    specs: dict[str, safetensors.Spec], family: Family, *, tie: bool
) -> dict[str, safetensors.Spec]:
    """The tensors that are parameters. A tied head that is stored too must equal the embedding."""
    copy, original = family.tied
    if tie and copy in specs and original in specs:
        views = safetensors.views({name: specs[name] for name in family.tied})
        if not np.array_equal(views[copy], views[original]):
            raise ValueError(
                f"With tie_word_embeddings=true {copy} must equal {original}, got two that differ. "
                "Set tie_word_embeddings=false in config.json to keep both, or remove one."
            )
    dropped = {name for name in specs if is_buffer(name, family.buffers)}
    dropped |= {copy} if tie else set()
    return {name: spec for name, spec in specs.items() if name not in dropped}


def _check(wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    missing, unexpected = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    lines = [f"missing {name} {wanted[name]}{near(name, unexpected)}" for name in sorted(missing)]
    lines += [
        f"unexpected {name} {found[name]}{near(name, missing)}" for name in sorted(unexpected)
    ]
    lines += [
        f"misshapen {name}: {found[name]} where config.json gives {wanted[name]}"
        for name in sorted(wanted.keys() & found.keys())
        if wanted[name] != found[name]
    ]
    if lines:
        listed = "\n  ".join(lines)
        raise ValueError(
            f"The tensors of the files must be those of config.json, got\n  {listed}\n"
            "Use the config.json that was saved with these files."
        )


def _place(model: Decoder, mesh: Mesh | None, rules: Rules) -> None:
    if mesh is None:
        return
    structs, tree = jax.tree.flatten(nnx.state(model, nnx.Param))
    places = jax.tree.leaves(shardings(model, mesh, rules=rules))
    placed = [
        jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=place)
        for struct, place in zip(structs, places, strict=True)
    ]
    nnx.update(model, jax.tree.unflatten(tree, placed))


def _array(view: np.ndarray, op: Op, struct: jax.ShapeDtypeStruct, dtype: DTypeLike) -> jax.Array:
    """The leaf, read as a view per device; JAX makes the only copy while it transfers."""

    def part(index: Slices | None) -> np.ndarray:
        return op.read(view, index or ()).astype(dtype, copy=False)

    if struct.sharding is None:
        return jax.device_put(part(None))
    return jax.make_array_from_callback(struct.shape, struct.sharding, part)
