# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Directories of sentence-transformers: an encoder of text, its pooling, and perhaps a norm of 1.

`modules.json` lists the modules in the order in which they run, and each may have a directory with
its own configuration. Each of them changes the embedding, so a directory with a module or an option
that has no counterpart in `pool` is refused, and none is ignored.
"""

import dataclasses
import json
from pathlib import Path, PurePosixPath
from typing import Any

from dovetail_models import _elsewhere
from dovetail_models.hf.hub import resolve
from dovetail_models.hf.load import plan
from dovetail_models.model.encoder import TextEncoder
from dovetail_models.model.pool import Pooling

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
class SentenceModules:
    """The modules of a directory, for `load_encoder` and `pool`.

    Attributes:
        encoder: Directory of the encoder, for `load_encoder`.
        pooling: `kind` of `pool`. None: the directory has no `modules.json`.
        normalize: `normalize` of `pool`.
        max_length: Tokens to which a text is cut; None if the directory does not say.
        folders: Directories of the modules that are not the directory itself, relative to it.
    """

    encoder: Path
    pooling: Pooling | None
    normalize: bool = False
    max_length: int | None = None
    folders: tuple[str, ...] = ()


@_elsewhere.call
def sentence_modules(path: str | Path, *, pooling: Pooling | None = None) -> SentenceModules:
    """Reads the modules of a sentence-transformers directory, and no weights.

    Args:
        path: The directory, or a Hub id, as for `load`. Without `modules.json` the encoder is its
            only module.
        pooling: Replaces the module Pooling. The others are kept.

    Raises:
        ValueError: The modules are others than Transformer, Pooling and perhaps Normalize, one of
            them has options without a counterpart, or the model is no encoder of text.

    Example:

        >>> import tempfile
        >>> from dovetail_models import bert, init, save, sentence_modules
        >>> path = tempfile.mkdtemp()
        >>> save(init(bert(vocab_size=64, embed=16, depth=1, heads=4, mlp=32), seed=0), path)
        >>> modules = sentence_modules(path, pooling="mean")
        >>> modules.pooling, modules.normalize
        ('mean', False)
    """
    source = resolve(path)
    file = source / MODULES
    if not file.is_file():
        _refuse_pooling_alone(source)
        return SentenceModules(encoder=source, pooling=pooling)
    modules = _listed(file)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            "modules of sentence-transformers must be a Transformer, a Pooling and perhaps a "
            f"Normalize, in this order, got {', '.join(kinds) or 'none'} in {str(file)!r}: write a "
            "function of all of them, which dovetail_serve.export takes too"
        )
    folders = [_folder(path, file) for _, path in modules]
    encoder = source / folders[0]
    model, _ = plan(encoder, rules=None, allow=())
    if not isinstance(model, TextEncoder):
        raise ValueError(
            "the Transformer of sentence-transformers must be an encoder of text, got a "
            f"{type(model).__name__} in {str(encoder)!r}: copy config.json and *.safetensors to "
            "another directory to use the model alone"
        )
    return SentenceModules(
        encoder=encoder,
        pooling=pooling or _pooling(source / folders[1] / "config.json"),
        normalize="Normalize" in kinds,
        max_length=_length(encoder / OPTIONS, model.config.max_length),
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


def _listed(file: Path) -> list[tuple[str, str]]:
    """Returns (class, directory) of each module."""
    listed = _json(file)
    if not isinstance(listed, list) or not all(map(_is_module, listed)):
        raise ValueError(
            f"{MODULES} must be a list of modules with a type and a path, got {str(file)!r} with "
            "something else: fetch it again"
        )
    return [(_kind(module["type"]), module["path"]) for module in listed]


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
