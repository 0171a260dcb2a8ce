# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face directory as a model, each device reading its own bytes.

Leaf by leaf, while those before are still on their way: beside the parameters that are loaded, the
host holds one leaf, or several of 256 MiB together, and one decoded tensor.
"""

import collections
from pathlib import Path
from typing import Any, overload

import jax
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import DTypeLike

from dovetail_models.build import AnyConfig
from dovetail_models.config import Config
from dovetail_models.decoder import Decoder
from dovetail_models.encoder import TextEncoder
from dovetail_models.encoder_config import DualConfig, TextConfig, VisionConfig
from dovetail_models.families import FAMILIES
from dovetail_models.hf.config import parse
from dovetail_models.hf.directory import read_config, read_specs
from dovetail_models.hf.match import Leaf, Matched, match
from dovetail_models.hf.stream import fill
from dovetail_models.hf.table import dotted
from dovetail_models.hf.tensors import decode
from dovetail_models.init import outline
from dovetail_models.shard import RULES, WEIGHTS, Rules, shardings
from dovetail_models.vision import DualEncoder, VisionEncoder

# Leaves of so many bytes may be on their way to the devices at once; a larger one goes alone.
_FLYING_BYTES = 1 << 28


def load(
    path: str | Path,
    *,
    mesh: Mesh | None = None,
    rules: Rules = RULES,
    dtype: DTypeLike | None = None,
    allow: tuple[str, ...] = (),
) -> Decoder:
    """The decoder in a Hugging Face directory (config.json, *.safetensors), placed on `mesh`.

    Parameters keep the dtype of the file unless `dtype` casts them; block-scaled fp8 and MXFP4
    become bfloat16. Without a mesh they lie on the default device, uncommitted. `allow` names keys
    of config.json that this library does not know and that you know to alter nothing. On a CPU the
    files may back the parameters: never alter them in place.

    Logs a warning for tensors that are left out: those that no module computes, and the rows that
    pad a vocabulary. Raises ValueError for tensors that are missing, unexpected or of another shape
    (all of them in one message), for an unknown family, config key or quantisation, and for a
    damaged file.
    """
    options = {"mesh": mesh, "rules": rules, "dtype": dtype, "allow": allow}
    return _read(Path(path), decoder=True, **options)


def load_encoder(
    path: str | Path,
    *,
    mesh: Mesh | None = None,
    rules: Rules = RULES,
    dtype: DTypeLike | None = None,
    allow: tuple[str, ...] = (),
) -> TextEncoder | VisionEncoder | DualEncoder:
    """The encoder in a Hugging Face directory: BERT, ViT or SigLIP; everything else as `load`.

    Files beside config.json and the tensors are not read: how a sentence-transformers model pools
    (`1_Pooling/config.json`) and how images are normalised (preprocessor_config.json) is for the
    caller to follow.
    """
    options = {"mesh": mesh, "rules": rules, "dtype": dtype, "allow": allow}
    return _read(Path(path), decoder=False, **options)


def _read(
    path: Path,
    *,
    decoder: bool,
    mesh: Mesh | None,
    rules: Rules,
    dtype: DTypeLike | None,
    allow: tuple[str, ...],
) -> Any:
    """The model in a directory, which must be a decoder or must not."""
    model, found = plan(path, rules=rules, allow=allow)
    if isinstance(model, Decoder) != decoder:
        this, other = ("load", "load_encoder") if decoder else ("load_encoder", "load")
        raise ValueError(
            f"{this} reads {'a decoder' if decoder else 'an encoder'}, got path={str(path)!r} with "
            f"model_type={model.config.family!r}, a {type(model).__name__}. Use {other}(path)."
        )
    found.check_copy()
    _place(model, mesh, rules)

    flying: collections.deque[jax.Array] = collections.deque()

    def filled(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        struct = param.get_value()
        value = fill(found.sources[dotted(path)], struct, dtype=np.dtype(dtype or struct.dtype))
        flying.append(value)
        while sum(leaf.nbytes for leaf in flying) > _FLYING_BYTES:
            jax.block_until_ready(flying.popleft())
        return param.replace(value)

    state = nnx.map_state(filled, nnx.state(model, WEIGHTS))
    nnx.update(model, jax.block_until_ready(state))
    return model


@overload
def abstract(
    path_or_config: Config,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules = ...,
    allow: tuple[str, ...] = ...,
) -> Decoder: ...
@overload
def abstract(
    path_or_config: TextConfig,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules = ...,
    allow: tuple[str, ...] = ...,
) -> TextEncoder: ...
@overload
def abstract(
    path_or_config: VisionConfig,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules = ...,
    allow: tuple[str, ...] = ...,
) -> VisionEncoder: ...
@overload
def abstract(
    path_or_config: DualConfig,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules = ...,
    allow: tuple[str, ...] = ...,
) -> DualEncoder: ...
@overload
def abstract(
    path_or_config: str | Path,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules = ...,
    allow: tuple[str, ...] = ...,
) -> Any: ...
def abstract(
    path_or_config: str | Path | AnyConfig,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    rules: Rules = RULES,
    allow: tuple[str, ...] = (),
) -> Any:
    """The model of a directory or a configuration, with a `jax.ShapeDtypeStruct` for each
    parameter: a decoder or an encoder, as `load` or `load_encoder` reads and `init` makes it.

    Of the files only headers are read. With a mesh, which may be abstract, each struct has its
    sharding.
    """
    if isinstance(path_or_config, str | Path):
        model, _ = plan(Path(path_or_config), rules=rules, allow=allow)
    else:
        model = outline(path_or_config, rules=rules)
    _place(model, mesh, rules)
    return model


def plan(path: Path, *, rules: Rules, allow: tuple[str, ...]) -> tuple[Any, Matched]:
    """(outline with the dtypes of the files, what fills it), from the headers alone."""
    keys = read_config(path)
    quantization = keys.pop("quantization_config", None)
    config = parse(keys, allow=allow)
    family, specs = FAMILIES[config.family], read_specs(path)
    config = family.fit(config, specs.keys())
    model = outline(config, rules=rules)
    params = nnx.to_flat_state(nnx.state(model, WEIGHTS))
    leaves = {
        dotted(leaf): Leaf(shape=param.shape, names=param.get_metadata("out_sharding"))
        for leaf, param in params
    }
    tensors = decode(specs, quantization)
    tie = isinstance(config, Config) and config.tie
    found = match(family, leaves, tensors, tie=tie, dropped=family.dropped(config))

    def typed(leaf: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        return param.replace(jax.ShapeDtypeStruct(param.shape, found.sources[dotted(leaf)].dtype))

    nnx.update(model, nnx.map_state(typed, nnx.state(model, WEIGHTS)))
    return model, found


def _place(model: nnx.Module, mesh: Mesh | AbstractMesh | None, rules: Rules) -> None:
    if mesh is None:
        return
    structs, tree = jax.tree.flatten(nnx.state(model, WEIGHTS))
    places = jax.tree.leaves(shardings(model, mesh, rules=rules, only=WEIGHTS))
    placed = [
        jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=place)
        for struct, place in zip(structs, places, strict=True)
    ]
    nnx.update(model, jax.tree.unflatten(tree, placed))
