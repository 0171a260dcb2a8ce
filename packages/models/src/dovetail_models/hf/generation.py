# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Generation defaults of a Hugging Face directory: the ids that end a text, and its sampling.

A chat model often ends its turns with another token than the one that its tokenizer calls eos.
config.json or generation_config.json name it, at times only one of them, so their union counts.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dovetail_models.hf.directory import (
    CONFIG_FILE,
    GENERATION_FILE,
    read_config,
    read_generation,
)
from dovetail_models.hf.hub import resolve

T = TypeVar("T", int, float)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """Generation defaults of a directory. Options are named as in `dovetail_infer.Sampling`.

    Attributes:
        eos_ids: Ids that end a text, in ascending order. Empty if the directory names none.
        sample: Whether its `generate` samples (`do_sample`); otherwise it takes the likeliest.
        temperature: Divisor of the logits. None: not named, here and below.
        top_k: Number of likeliest tokens to sample from. The file's 0 and -1, all tokens, are None.
        top_p: Share of probability to sample from.
        min_p: Least share of the likeliest token's probability.
        repetition_penalty: Divisor for tokens that were there.
    """

    eos_ids: tuple[int, ...]
    sample: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None

    def sampling(self) -> dict[str, Any]:
        """Returns the options that the directory suggests, for `dovetail_infer.Sampling`.

        A directory that does not sample takes the likeliest tokens, at temperature 0: of its
        options only the repetition penalty has an effect. One that samples without a temperature
        means 1.
        """
        named = dataclasses.asdict(self)
        del named["eos_ids"], named["sample"]
        options = {name: value for name, value in named.items() if value is not None}
        if self.sample:
            return {"temperature": 1.0, **options}
        kept = {name: x for name, x in options.items() if name == "repetition_penalty"}
        return {"temperature": 0, **kept}


def generation_defaults(path: str | Path) -> GenerationDefaults:
    """Returns the generation defaults of a directory.

    `eos_ids` is the union of `eos_token_id` in config.json, in its text_config and in
    generation_config.json. Each is an id, a list of ids or null.

    Args:
        path: Hugging Face directory, or an id of the Hub (`hub.resolve`). generation_config.json
            may be missing.

    Raises:
        FileNotFoundError: The directory has no config.json.
        ValueError: A file is not a JSON object, or a value has another type.

    Example:

        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (path / "config.json").write_text('{"eos_token_id": 1}')
        >>> _ = (path / "generation_config.json").write_text('{"eos_token_id": [1, 106]}')
        >>> generation_defaults(path).eos_ids
        (1, 106)
    """
    path = resolve(path)
    config, generation = read_config(path), read_generation(path)
    ids: set[int] = set()
    inner = config.get("text_config")
    for keys in (config, inner if isinstance(inner, dict) else {}):
        ids.update(_eos_ids(keys, path / CONFIG_FILE))
    file = path / GENERATION_FILE
    ids.update(_eos_ids(generation, file))
    top_k = _number(generation, "top_k", int, file)
    return GenerationDefaults(
        eos_ids=tuple(sorted(ids)),
        sample=_sample(generation, file),
        temperature=_number(generation, "temperature", float, file),
        top_k=None if top_k in (0, -1) else top_k,
        top_p=_number(generation, "top_p", float, file),
        min_p=_number(generation, "min_p", float, file),
        repetition_penalty=_number(generation, "repetition_penalty", float, file),
    )


def _eos_ids(keys: Mapping[str, Any], file: Path) -> list[int]:
    value = keys.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(_is_number(i, int) and i >= 0 for i in ids):
        raise _wrong("eos_token_id", "an id, a list of ids or null", value, file)
    return ids


def _sample(keys: Mapping[str, Any], file: Path) -> bool:
    value = keys.get("do_sample")
    if value is not None and not isinstance(value, bool):
        raise _wrong("do_sample", "true, false or null", value, file)
    return bool(value)


def _number(keys: Mapping[str, Any], name: str, kind: type[T], file: Path) -> T | None:
    value = keys.get(name)
    if value is None:
        return None
    if not _is_number(value, kind):
        must = "an integer or null" if kind is int else "a number or null"
        raise _wrong(name, must, value, file)
    return kind(value)


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)


def _wrong(name: str, must: str, value: Any, file: Path) -> ValueError:
    return ValueError(
        f"{name} must be {must}, got {name}={value!r:.100} in {str(file)!r}. Correct the file."
    )
