# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A saved decoder becomes a sequence classifier of transformers: one more shard, and its labels."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from dovetail_models.hf import safetensors
from dovetail_models.hf.directory import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE, read_config

_HEAD, _LANGUAGE = "model-score.safetensors", "model-language.safetensors"
_DECODER, _CLASSIFIER = "ForCausalLM", "ForSequenceClassification"


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
    _write(path / CONFIG_FILE, config)


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
    _write(index, entries)


def _write(file: Path, keys: object) -> None:
    file.write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n", encoding="utf-8")
