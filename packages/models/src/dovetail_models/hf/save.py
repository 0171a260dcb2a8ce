# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Saves a model as a Hugging Face directory, completely or not at all."""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from dovetail_models import _elsewhere
from dovetail_models._durable import new_directory
from dovetail_models.build import AnyModel
from dovetail_models.describing.abbreviation import dotted
from dovetail_models.families import FAMILIES
from dovetail_models.hf import safetensors
from dovetail_models.hf.config import describe
from dovetail_models.hf.directory import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE, read_config
from dovetail_models.hf.expressible import check_expressible
from dovetail_models.hf.hub import resolve
from dovetail_models.hf.safetensors import Pending
from dovetail_models.placing.shard import WEIGHTS
from dovetail_models.tables.ops import Op, Shape
from dovetail_models.tables.table import Family, candidates

_HEAD, _LANGUAGE = "model-score.safetensors", "model-language.safetensors"
_DECODER, _CLASSIFIER = "ForCausalLM", "ForSequenceClassification"
# Tokenizer and generation files of a directory, besides the model.
BESIDE = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


@_elsewhere.call
def save(
    model: AnyModel,
    path: str | Path,
    *,
    like: str | Path | None = None,
    file_bytes: int = 5_000_000_000,
) -> None:
    """Writes `model` as a Hugging Face directory for transformers.

    The files are written beside `path`, synced and renamed into place, so a crash or a full disk
    leaves nothing at `path`. Tensors keep the dtype of their parameters. The host holds one tensor
    at a time.

    Args:
        model: The model. Its parameters must be real and addressable by this process.
        path: New or empty directory.
        like: Directory or Hub id with tokenizer and generation files to copy. None: no such
            files.
        file_bytes: Maximum bytes per tensor file. A larger tensor gets a file of its own.

    Raises:
        FileExistsError: `path` is in use.
        TypeError: `model` is not a model of this library.
        ValueError: The family's config.json cannot express the configuration, its files do not name
            a parameter or cannot express a module or attribute of your own, a parameter is
            quantized, abstract or spread over processes, or `like` has none of the files.

    Example:

        >>> import os, tempfile
        >>> from dovetail_models import init, llama
        >>> path = tempfile.mkdtemp()
        >>> config = llama(vocab_size=64, embed=16, depth=1, heads=4, mlp=32)
        >>> save(init(config, seed=0), path)
        >>> sorted(os.listdir(path))
        ['config.json', 'model.safetensors']
    """
    _check_model(model)
    check_expressible(model)
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"save writes a new directory, got path={str(path)!r}, which is in use. "
            "Choose another path, or remove it first."
        )
    others = [] if like is None else beside(resolve(like))
    keys = describe(model.config)
    pending = _pending(model, FAMILIES[model.config.family])
    kind = str(max(jax.tree.leaves(nnx.state(model, WEIGHTS)), key=lambda leaf: leaf.size).dtype)
    # Dtype of the largest parameter. transformers 4 reads torch_dtype, 5 reads dtype.
    keys |= {"dtype": kind, "torch_dtype": kind}
    with new_directory(path) as partial:
        for file in others:
            shutil.copyfile(file, partial / file.name)
        _write_json(partial / CONFIG_FILE, keys)
        _write_tensors(pending, partial, file_bytes)


def add_classifier(
    path: str | Path,
    kernel: Float[np.ndarray, "D K"],
    *,
    labels: Sequence[str],
    pad_id: int | None = None,
) -> None:
    """Makes a directory that `save` wrote of a decoder a sequence classifier of transformers.

    transformers applies the kernel to the features after the last id that is not padding. Without
    `pad_id` it reads one row at a time.

    Args:
        path: The directory.
        kernel: The head, without a bias.
        labels: Names of the K classes.
        pad_id: Id of padding, which ends no text.

    Raises:
        ValueError: The labels do not fit, or the family has no sequence classifier.

    Example:

        >>> import tempfile
        >>> from dovetail_models import add_classifier, init, llama, save
        >>> path = tempfile.mkdtemp()
        >>> save(init(llama(vocab_size=64, embed=16, depth=1, heads=4, mlp=32), seed=0), path)
        >>> add_classifier(path, np.zeros((16, 2), np.float32), labels=["no", "yes"])
    """
    path = Path(path)
    config = read_config(path)
    (kind,) = config["architectures"]
    if not kind.endswith(_DECODER):
        raise ValueError(
            f"a classifier must be of a family with one in transformers, got {kind} in "
            f"{str(path)!r}: begin from another model, such as a Llama"
        )
    if kernel.shape[1:] != (len(labels),):
        raise ValueError(
            f"labels must name the columns of the kernel, got labels={list(labels)} for "
            f"{list(kernel.shape)}: write one name for each"
        )
    config["architectures"] = [kind.removesuffix(_DECODER) + _CLASSIFIER]
    config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    config["label2id"] = {label: i for i, label in enumerate(labels)}
    if pad_id is not None:
        config["pad_token_id"] = pad_id
    _add_head(kernel.T, path)
    _write_json(path / CONFIG_FILE, config)


def _add_head(weight: np.ndarray, path: Path) -> None:
    """Adds score.weight [K, D] to the files of a directory, as one more shard."""
    index = path / INDEX_FILE
    if index.is_file():
        entries = json.loads(index.read_text(encoding="utf-8"))
    else:
        os.rename(path / WEIGHTS_FILE, path / _LANGUAGE)
        names = safetensors.header(path / _LANGUAGE)
        size = sum(spec.stop - spec.start for spec in names.values())
        entries = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(names, _LANGUAGE)}
    pending = safetensors.Pending(weight.dtype, weight.shape, lambda: weight)
    safetensors.write(path / _HEAD, {"score.weight": pending})
    entries["weight_map"]["score.weight"] = _HEAD
    entries["metadata"]["total_size"] += weight.nbytes
    _write_json(index, entries)


def _write_json(file: Path, keys: object) -> None:
    file.write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _check_model(model: nnx.Module) -> None:
    if not isinstance(model, AnyModel):
        raise TypeError(
            f"save writes a model of dovetail_models, got a {type(model).__name__}. Write "
            "nnx.state(module) of another module with Orbax or dovetail_checkpoint.Store."
        )
    for path, variable in nnx.to_flat_state(nnx.state(model, WEIGHTS)):
        value = variable.get_value()
        if not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
            raise ValueError(
                f"save writes float parameters, got {dotted(path)}={value!r:.200}. Write a "
                "quantized model with its quantizer, such as dovetail_quant.save, or save the "
                "float model."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Piece:
    """A leaf or one of its entries, and its place in a tensor.

    Attributes:
        op: Place of the leaf in the tensor.
        value: The leaf.
        e: Index of an entry of the first axis. None: the whole leaf.
    """

    op: Op
    value: jax.Array
    e: int | None

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        shape = self.value.shape
        return self.op.shape(shape if self.e is None else shape[1:])

    @property
    def size(self) -> int:
        """Number of tensor elements from this leaf."""
        return math.prod(self.value.shape if self.e is None else self.value.shape[1:])

    def write(self, tensor: np.ndarray) -> None:
        """Copies the leaf into the tensor, shard by shard."""
        view = self.op.view(tensor)
        for shard in self.value.addressable_shards:
            data = shard.data
            assert data is not None
            if shard.replica_id == 0:
                self._write(view, shard.index, data)

    def _write(self, view: np.ndarray, index: tuple[slice, ...], data: jax.Array) -> None:
        if self.e is None:
            # A new array over the same buffer. An array keeps its host copy, so without it the host
            # would end up with the whole model.
            fresh = jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])
            view[index] = np.asarray(fresh)
            return
        start, stop, _ = index[0].indices(self.value.shape[0])
        if start <= self.e < stop:
            # The index is an operand, so one program serves all entries.
            entry = jax.lax.dynamic_index_in_dim(data, np.int32(self.e - start), keepdims=False)
            view[index[1:]] = np.asarray(entry)


def _pending(model: nnx.Module, family: Family) -> dict[str, Pending]:
    """Returns the tensors to write, in the order of the model's leaves."""
    params = {
        dotted(leaf): param.get_value()
        for leaf, param in nnx.to_flat_state(nnx.state(model, WEIGHTS))
    }
    pieces: dict[str, list[_Piece]] = {}
    for leaf, (name, op) in candidates(family, params)[0].items():
        value = params[leaf]
        _check_here(leaf, value)
        stack = range(value.shape[0]) if "{e}" in name else [None]
        for e in stack:
            stored = family.on_disk(name.replace("{e}", str(e)))
            pieces.setdefault(stored, []).append(_Piece(op=op, value=value, e=e))
    return {name: _tensor(name, parts) for name, parts in pieces.items()}


def _tensor(name: str, pieces: list[_Piece]) -> Pending:
    kinds = {(piece.shape, np.dtype(piece.value.dtype)) for piece in pieces}
    if len(kinds) > 1:
        raise ValueError(
            f"The parameters that make up {name} must agree in shape and dtype, got "
            f"{sorted(f'{dtype}{list(shape)}' for shape, dtype in kinds)}. Cast the model to one "
            "dtype first."
        )
    shape, dtype = kinds.pop()
    # Elements without a piece would hold uninitialised memory.
    assert sum(piece.size for piece in pieces) == math.prod(shape), name

    def make() -> np.ndarray:
        tensor = np.empty(shape, dtype)
        for piece in pieces:
            piece.write(tensor)
        return tensor

    return Pending(dtype, shape, make)


def _check_here(leaf: str, value: jax.Array | jax.ShapeDtypeStruct) -> None:
    if not isinstance(value, jax.Array) or not value.is_fully_addressable:
        raise ValueError(
            "save writes from one process, which must hold every shard of a real parameter, got "
            f"{leaf}={value!r:.200}. Load or initialise the model, and gather it to one host."
        )


def _write_tensors(pending: dict[str, Pending], path: Path, file_bytes: int) -> None:
    groups = _groups(pending, file_bytes)
    if len(groups) == 1:
        safetensors.write(path / WEIGHTS_FILE, pending)
        return
    where = {}
    for i, group in enumerate(groups, start=1):
        name = f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        safetensors.write(path / name, {tensor: pending[tensor] for tensor in group})
        where |= dict.fromkeys(group, name)
    total = sum(tensor.nbytes for tensor in pending.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    _write_json(path / INDEX_FILE, index)


def _groups(pending: dict[str, Pending], file_bytes: int) -> list[list[str]]:
    groups: list[list[str]] = []
    room = 0
    for name, tensor in pending.items():
        if not groups or tensor.nbytes > room:
            groups.append([])
            room = file_bytes
        groups[-1].append(name)
        room -= tensor.nbytes
    return groups


def beside(like: Path) -> list[Path]:
    """Returns the tokenizer and generation files in `like`.

    Raises:
        ValueError: The directory has none.
    """
    files = [like / name for name in BESIDE if (like / name).is_file()]
    if not files:
        raise ValueError(
            f"like must be a directory with at least one of {', '.join(BESIDE)}, got "
            f"like={str(like)!r}. Pass the directory of the tokenizer, or leave like out."
        )
    return files
