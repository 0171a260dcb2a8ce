# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories of sentence-transformers: an encoder of text, its pooling, and perhaps a norm of 1.

`modules.json` lists the modules in the order in which they run, and each may have a directory with
its own configuration. Each of them changes the embedding, so a directory with a module or an option
that has no counterpart in `servable` is refused, and none is ignored.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from dovetail_models import TextEncoder, abstract
from dovetail_stack.recipes.servable import Pooling

MODULES, OPTIONS = "modules.json", "sentence_bert_config.json"
# By the value of "pooling_mode" (since sentence-transformers 5.4), and by the rest of the key
# "pooling_mode_...", of which earlier releases write one for each mode.
_MODES: dict[str, Pooling] = {
    "mean": "mean",
    "mean_tokens": "mean",
    "cls": "first",
    "cls_token": "first",
    "lasttoken": "last",
}
_PREFIX = "pooling_mode_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentences:
    """The modules of a directory.

    Attributes:
        encoder: Directory of the model.
        pooling: As for `servable`.
        normalize: As for `servable`.
        length: Tokens to which the encoder cuts a text; None if the directory does not say.
        folders: Directories of the modules that are not the directory itself, relative to it.
    """

    encoder: Path
    pooling: Pooling | None
    normalize: bool = False
    length: int | None = None
    folders: tuple[str, ...] = ()


def follow(source: Path, *, pooling: Pooling | None = None) -> Sentences:
    """Reads the modules of a directory, and no weights.

    Args:
        source: Hugging Face directory. Without `modules.json` the model is its only module.
        pooling: Replaces the module Pooling. The others are kept.

    Returns:
        The directory of the model, and the options of `servable` for the other modules.

    Raises:
        ValueError: The modules are others than Transformer, Pooling and perhaps Normalize, one of
            them has options without a counterpart, or the model is no encoder of text.
    """
    file = source / MODULES
    if not file.is_file():
        _refuse_pooling_alone(source)
        return Sentences(encoder=source, pooling=pooling)
    modules = _listed(file)
    kinds = [_kind(module["type"]) for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            "modules of sentence-transformers must be a Transformer, a Pooling and perhaps a "
            f"Normalize, in this order, got {', '.join(kinds) or 'none'} in {str(file)!r}: write a "
            "function of all of them, and export it with dovetail_serve.export"
        )
    folders = [_folder(module["path"], file) for module in modules]
    encoder = source / folders[0]
    if not isinstance(model := abstract(encoder), TextEncoder):
        raise ValueError(
            "the Transformer of sentence-transformers must be an encoder of text, got a "
            f"{type(model).__name__} in {str(encoder)!r}: copy config.json and *.safetensors to "
            "another directory to export the model alone"
        )
    return Sentences(
        encoder=encoder,
        pooling=pooling or _pooling(source / folders[1] / "config.json"),
        normalize="Normalize" in kinds,
        length=_length(encoder / OPTIONS, model.config.max_length),
        folders=tuple(folder for folder in folders if folder != "."),
    )


def _refuse_pooling_alone(source: Path) -> None:
    """Raises ValueError for a directory of a Pooling without `modules.json`.

    Without that list nothing says whether a Normalize comes after the Pooling.
    """
    for folder in sorted(source.glob("*_Pooling")):
        raise ValueError(
            f"a directory with {folder.name} must have {MODULES}, which says if embeddings are "
            f"normalised, got none in {str(source)!r}: fetch it, or remove {folder.name}"
        )


def _listed(file: Path) -> Sequence[Mapping[str, str]]:
    listed = _json(file)
    if not isinstance(listed, list) or not all(map(_is_module, listed)):
        raise ValueError(
            f"{MODULES} must be a list of modules with a type and a path, got {str(file)!r} with "
            "something else: fetch it again"
        )
    return listed


def _is_module(module: Any) -> bool:
    keys = ("type", "path")
    return isinstance(module, dict) and all(isinstance(module.get(key), str) for key in keys)


def _kind(path: str) -> str:
    """Returns the name of a class of sentence-transformers, or the whole path of another's.

    Releases before 5.4 write sentence_transformers.models.Pooling, later ones
    sentence_transformers.sentence_transformer.modules.pooling.Pooling.
    """
    return path.rpartition(".")[2] if path.startswith("sentence_transformers.") else path


def _folder(path: str, file: Path) -> str:
    folder = PurePosixPath(path)
    if folder.is_absolute() or ".." in folder.parts:
        raise ValueError(
            f"modules must have their files inside their directory, got {path!r} in {str(file)!r}: "
            "copy the files beside it, and write a path such as '1_Pooling'"
        )
    return str(folder)


def _pooling(file: Path) -> Pooling:
    """Returns the pooling that a module's configuration states."""
    instead = 'pass pooling="mean", "first" or "last" to replace it'
    if not file.is_file():
        raise ValueError(f"a Pooling must have a config.json, got no {str(file)!r}: {instead}")
    keys = _json(file)
    if not isinstance(keys, dict):
        raise ValueError(f"a Pooling must have an object, got {keys!r} in {str(file)!r}: {instead}")
    mode = keys.get("pooling_mode")
    stated = [k.removeprefix(_PREFIX) for k, on in keys.items() if k.startswith(_PREFIX) and on]
    if mode is not None:
        stated = list(map(str, mode if isinstance(mode, list) else [mode]))
    if len(stated) != 1 or stated[0] not in _MODES:
        raise ValueError(
            f"a pooling must be one of {', '.join(_MODES)}, got {', '.join(stated) or 'none'} in "
            f"{str(file)!r}: {instead}"
        )
    if keys.get("include_prompt", True) is not True:
        raise ValueError(
            "a pooling must include the tokens of a prompt, since a row has one mask, got "
            f'"include_prompt": {json.dumps(keys["include_prompt"])} in {str(file)!r}: {instead}'
        )
    return _MODES[stated[0]]


def _length(file: Path, positions: int) -> int | None:
    """Returns the tokens to which a Transformer cuts texts: at most its positions."""
    keys = _json(file) if file.is_file() else {}
    length = keys.get("max_seq_length") if isinstance(keys, dict) else keys
    if length is None:
        return None
    if type(length) is not int or length < 1:
        raise ValueError(
            f'"max_seq_length" must be a number of tokens from 1, got {length!r} in {str(file)!r}: '
            "write null for all positions of the model"
        )
    return min(length, positions)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{str(file)!r} must be JSON, got {error}: fetch it again") from error
