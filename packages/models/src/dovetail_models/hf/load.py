# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loads a Hugging Face directory. Each device reads its own bytes.

Leaves are filled one by one while earlier ones are still in transfer. Besides the loaded
parameters, the host holds one leaf, or several of 256 MiB together, and one decoded tensor.
"""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from dovetail_models import _elsewhere
from dovetail_models.build import outline, place_on
from dovetail_models.config.decoder import Config
from dovetail_models.describing.abbreviation import dotted
from dovetail_models.families import FAMILIES
from dovetail_models.hf.config import parse
from dovetail_models.hf.directory import read_config, read_specs
from dovetail_models.hf.hub import resolve
from dovetail_models.hf.match import Leaf, Matched, match, without
from dovetail_models.hf.stream import fill
from dovetail_models.hf.tensors import decode
from dovetail_models.model.decoder import Decoder
from dovetail_models.model.encoder import TextEncoder
from dovetail_models.model.vision import DualEncoder, VisionEncoder
from dovetail_models.placing.shard import WEIGHTS, Rules, keeps_dtype

# Limit of the bytes in transfer to the devices at once; a larger leaf goes alone.
_FLYING_BYTES = 1 << 28


@jax.transfer_guard("allow")
@_elsewhere.load
def load(
    path: str | Path,
    *,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    dtype: DTypeLike | None = None,
    allow: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
) -> Decoder:
    """Loads the decoder of a Hugging Face directory (config.json, *.safetensors).

    Block-scaled fp8 and MXFP4 become bfloat16. On a CPU the files may back the parameters: never
    change the files in place. Logs a warning for omitted tensors: those without a module here, and
    the rows of a padded vocabulary.

    Args:
        path: The directory, or a Hub id `org/name` or `org/name@revision`; see `hub.resolve`.
        mesh: Placement of the parameters. None: the default device, uncommitted.
        rules: Placement rules; see `shardings`. None: `RULES`.
        dtype: Dtype of the parameters. None: as in the files. The selection bias of a router stays
            float32 in any case.
        allow: Unknown config.json keys to accept. Only pass keys without effect on the model.
        ignore: Patterns of extra tensors to leave out with a warning, such as
            "**.rotary_emb.inv_freq".

    Returns:
        The decoder.

    Raises:
        FileNotFoundError: config.json or a file is missing.
        ValueError: Tensors are missing, unexpected or of another shape (one message lists all); the
            family, a config key or the quantisation is unknown; a file is damaged; the mesh axes do
            not divide a dimension; or the directory holds an encoder.

    Example:

        >>> import tempfile
        >>> from dovetail_models import init, llama, save
        >>> path = tempfile.mkdtemp()
        >>> config = llama(vocab_size=64, embed=16, depth=1, heads=4, mlp=32)
        >>> save(init(config, seed=0), path)
        >>> load(path, dtype="bfloat16").embed.embedding.dtype
        dtype(bfloat16)
    """
    options = {"mesh": mesh, "rules": rules, "dtype": dtype, "allow": allow}
    options["ignore"] = ignore
    return _read(Path(path), decoder=True, **options)


@jax.transfer_guard("allow")
@_elsewhere.load
def load_encoder(
    path: str | Path,
    *,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    dtype: DTypeLike | None = None,
    allow: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
) -> TextEncoder | VisionEncoder | DualEncoder:
    """Loads the encoder of a Hugging Face directory: BERT, ViT or SigLIP.

    Reads config.json and the tensors only. `sentence_modules` reads the pooling of a
    sentence-transformers model. Follow preprocessor_config.json, the normalisation of images,
    yourself.

    Args:
        path: The directory, or a Hub id `org/name` or `org/name@revision`; see `hub.resolve`.
        mesh: Placement of the parameters. None: the default device, uncommitted.
        rules: Placement rules; see `shardings`. None: `RULES`.
        dtype: Dtype of the parameters. None: as in the files.
        allow: Unknown config.json keys to accept. Only pass keys without effect on the model.
        ignore: Patterns of extra tensors to leave out with a warning, such as
            "**.rotary_emb.inv_freq".

    Returns:
        The encoder.

    Raises:
        FileNotFoundError: As for `load`.
        ValueError: As for `load`, or the directory holds a decoder.

    Example:

        >>> import tempfile
        >>> from dovetail_models import bert, init, save
        >>> path = tempfile.mkdtemp()
        >>> config = bert(vocab_size=64, embed=16, depth=1, heads=4, mlp=32)
        >>> save(init(config, seed=0), path)
        >>> type(load_encoder(path)).__name__
        'TextEncoder'
    """
    options = {"mesh": mesh, "rules": rules, "dtype": dtype, "allow": allow}
    options["ignore"] = ignore
    return _read(Path(path), decoder=False, **options)


def _read(
    path: Path,
    *,
    decoder: bool,
    mesh: Mesh | None,
    rules: Rules | None,
    dtype: DTypeLike | None,
    allow: tuple[str, ...],
    ignore: tuple[str, ...],
) -> Any:
    """Loads the model; `decoder` tells if it must be a decoder."""
    try:
        wanted = None if dtype is None else np.dtype(dtype)
    except TypeError as error:
        raise TypeError(
            f"dtype must be a dtype of JAX, got dtype={dtype!r}. Use jnp.bfloat16 or 'float32'."
        ) from error
    model, matched = plan(path, rules=rules, allow=allow, ignore=ignore)
    if isinstance(model, Decoder) != decoder:
        this, other = ("load", "load_encoder") if decoder else ("load_encoder", "load")
        raise ValueError(
            f"{this} reads {'a decoder' if decoder else 'an encoder'}, got path={str(path)!r} with "
            f"model_type={model.config.family!r}, a {type(model).__name__}. Use {other}(path)."
        )
    matched.check_copy()
    place_on(model, mesh, rules)

    flying: collections.deque[jax.Array] = collections.deque()

    def filled(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        struct = param.get_value()
        kind = np.dtype(struct.dtype) if wanted is None or keeps_dtype(param) else wanted
        value = fill(matched.sources[dotted(path)], struct, dtype=kind)
        flying.append(value)
        while sum(leaf.nbytes for leaf in flying) > _FLYING_BYTES:
            jax.block_until_ready(flying.popleft())
        return param.replace(value)

    state = nnx.map_state(filled, nnx.state(model, WEIGHTS))
    nnx.update(model, jax.block_until_ready(state))
    return model


def plan(
    path: Path, *, rules: Rules | None, allow: tuple[str, ...], ignore: tuple[str, ...] = ()
) -> tuple[Any, Matched]:
    """Matches the tensors of a directory with the leaves of its model, from headers alone.

    Args:
        path: The directory, or a Hub id.
        rules: Placement rules; see `shardings`. None: `RULES`.
        allow: Unknown config.json keys to accept.
        ignore: Patterns of extra tensors to leave out.

    Returns:
        (abstract model with the dtypes of the files, sources of its leaves).

    Raises:
        FileNotFoundError: config.json or a file is missing.
        ValueError: Keys, names or shapes do not fit, or a file is damaged.
    """
    path = resolve(path)
    keys = read_config(path)
    quantization = keys.pop("quantization_config", None)
    config = parse(keys, allow=allow)
    family, specs = FAMILIES[config.family], without(read_specs(path), ignore)
    config = family.fit(config, specs.keys())
    model = outline(config, rules=rules)
    params = nnx.to_flat_state(nnx.state(model, WEIGHTS))
    leaves = {
        dotted(leaf): Leaf(shape=param.shape, names=param.get_metadata("out_sharding"))
        for leaf, param in params
    }
    tensors = decode(specs, quantization)
    tie = isinstance(config, Config) and config.tie
    matched = match(family, leaves, tensors, tie=tie, dropped=family.dropped(config))

    def typed(leaf: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        if keeps_dtype(param):
            return param
        return param.replace(jax.ShapeDtypeStruct(param.shape, matched.sources[dotted(leaf)].dtype))

    nnx.update(model, nnx.map_state(typed, nnx.state(model, WEIGHTS)))
    return model, matched
