# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder as a Hugging Face directory, there whole or not at all."""

import functools
import json
import os
import shutil
import uuid
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from dovetail_models.decoder import Decoder
from dovetail_models.families import FAMILIES
from dovetail_models.hf import safetensors
from dovetail_models.hf.config import describe
from dovetail_models.hf.load import INDEX
from dovetail_models.hf.ops import Op
from dovetail_models.hf.safetensors import Pending
from dovetail_models.hf.table import dotted, sources

# What a directory holds beside the model, for whoever generates text with it.
_BESIDE = (
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


def save(
    model: Decoder,
    path: str | Path,
    *,
    like: str | Path | None = None,
    file_bytes: int = 5_000_000_000,
) -> None:
    """Write `model` as a Hugging Face directory that transformers opens.

    `path` must not exist, or be an empty directory: the files are written beside it, synced, and
    renamed into place, so a crash or a full disk leaves nothing there. `like` is a directory whose
    tokenizer and generation files are copied along. Tensors go to files of at most `file_bytes`
    (a larger tensor alone in its own), one at a time on the host, in the dtype of the parameter.

    Raises FileExistsError for a path in use, and ValueError for a config that its family's
    config.json cannot say or an empty `like`.
    """
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"save writes a new directory, got path={str(path)!r}, which is in use. "
            "Choose another path, or remove it first."
        )
    beside = [] if like is None else _beside(Path(like))
    keys = describe(model.config)
    kind = str(model.embed.embedding.dtype)
    # transformers read torch_dtype until 4 and dtype from 5 on.
    keys |= {"dtype": kind, "torch_dtype": kind}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.partial"
    partial.mkdir()
    try:
        for file in beside:
            shutil.copyfile(file, partial / file.name)
        (partial / "config.json").write_text(
            json.dumps(keys, indent=2, sort_keys=True) + "\n", "utf-8"
        )
        _write_tensors(_pending(model), partial, file_bytes)
        _sync(*partial.iterdir(), partial)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync(path.parent)


def _pending(model: Decoder) -> dict[str, Pending]:
    params = {dotted(leaf): p for leaf, p in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    pending = {}
    for leaf, (name, op) in sources(FAMILIES[model.config.family].table, params).items():
        value = params[leaf].get_value()
        make = functools.partial(_tensor, op, value)
        pending[name] = Pending(np.dtype(value.dtype), op.shape(value.shape), make)
    return pending


def _tensor(op: Op, value: jax.Array) -> np.ndarray:
    return op.write(np.asarray(value))


def _write_tensors(pending: dict[str, Pending], path: Path, file_bytes: int) -> None:
    groups = _groups(pending, file_bytes)
    if len(groups) == 1:
        safetensors.write(path / "model.safetensors", pending)
        return
    where = {}
    for i, group in enumerate(groups, start=1):
        name = f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        safetensors.write(path / name, {tensor: pending[tensor] for tensor in group})
        where |= dict.fromkeys(group, name)
    total = sum(tensor.nbytes for tensor in pending.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (path / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", "utf-8")


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


def _beside(like: Path) -> list[Path]:
    found = [like / name for name in _BESIDE if (like / name).is_file()]
    if not found:
        raise ValueError(
            f"like must be a directory with at least one of {', '.join(_BESIDE)}, got "
            f"like={str(like)!r}. Pass the directory of the tokenizer, or leave like out."
        )
    return found


def _sync(*paths: Path) -> None:
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
