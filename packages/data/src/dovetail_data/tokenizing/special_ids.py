# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The ids that begin and end a text, as the files of a tokenizer say.

The first token follows transformers 5: it is the one that the post_processor of tokenizer.json puts
before a text. bos_token of tokenizer_config.json is only a name: Qwen2.5, GPT-2 and SmolLM2 have
one, or the usual word in the vocabulary, and put none. add_bos_token is not read either: beside a
tokenizer.json transformers 5 drops it.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)
_PROBE = 2**32 - 1
USUAL_EOS = ("<|eos|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "[EOS]")


def read_config(file: Path) -> dict[str, Any]:
    """Returns the keys of a tokenizer_config.json; empty without the file.

    Raises:
        ValueError: The file is not a JSON object.
    """
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"a {type(config).__name__} in the place of an object")
    except ValueError as error:
        raise ValueError(
            f"{file.name} must be a JSON object: got {str(file)!r}: {error}. Fetch or write it "
            "again."
        ) from error
    return config


def name_of(config: Mapping[str, Any], key: str) -> str | None:
    """Returns the name of a special token: the file has a name, {"content": name}, or null."""
    value = config.get(key)
    return value.get("content") if isinstance(value, dict) else value


def first_id(lib: Any, tokenizer: Any, config: Mapping[str, Any]) -> int | None:
    """Returns the id that a tokenizer puts before a text, or None.

    Args:
        lib: The package `tokenizers`.
        tokenizer: A `tokenizers.Tokenizer` with its post_processor.
        config: The tokenizer_config.json beside it.

    Raises:
        ValueError: It puts several.
    """
    ids = _ids_before(lib, tokenizer.post_processor)
    if len(ids) > 1:
        names = [tokenizer.id_to_token(i) for i in ids]
        raise ValueError(
            f"a tokenizer may put at most one token before a text: got {names} from its "
            f"post_processor. Pass bos= one of them, such as bos={names[0]!r}."
        )
    if config.get("add_bos_token") is True and not ids:
        _log.warning(
            "texts begin without bos, as in transformers 5: the post_processor of tokenizer.json "
            "adds none, though tokenizer_config.json says add_bos_token=true. Pass bos=%r for one",
            name_of(config, "bos_token"),
        )
    return ids[0] if ids else None


def _ids_before(lib: Any, post_processor: Any) -> list[int]:
    """Returns the ids that a post_processor of any kind puts before a text."""
    if post_processor is None:
        return []
    # It runs on a word of a tokenizer of its own, whose id no other token has: that works for all
    # kinds, and no text of the real vocabulary needs to be known.
    probe = lib.Tokenizer(lib.models.WordLevel({"a": _PROBE}, unk_token="a"))
    probe.post_processor = post_processor
    ids = list(probe.encode("a").ids)
    return ids[: ids.index(_PROBE)]


def find(
    vocabulary: Mapping[str, int], name: str | None, usual: Sequence[str] = (), *, argument: str
) -> int | None:
    """Returns the id of a special token, or None.

    Args:
        vocabulary: All tokens with their ids.
        name: The token. None: the first of the usual ones that the vocabulary has.
        usual: Usual names.
        argument: Name of the argument that gave it, for the error.

    Raises:
        ValueError: The name is not in the vocabulary.
    """
    if name is None:
        return next((vocabulary[token] for token in usual if token in vocabulary), None)
    if name not in vocabulary:
        raise ValueError(
            f"{argument} must be in the vocabulary: got {argument}={name!r}. "
            f"Pass {argument}= a token of the tokenizer.json."
        )
    return vocabulary[name]


def reading(library: Any, tokenizer: Any) -> Any:
    """Returns a tokenizer of the same parts that reads special tokens in text.

    It shares the model in memory, so that nothing is parsed again. Tokens added in the order of
    their ids get these ids again.

    Args:
        library: The package tokenizers.
        tokenizer: A `tokenizers.Tokenizer` that may take special tokens as text.
    """
    twin = library.Tokenizer(tokenizer.model)
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if (used := getattr(tokenizer, name)) is not None:
            setattr(twin, name, used)
    added = tokenizer.get_added_tokens_decoder()
    for _, token in sorted(added.items()):
        (twin.add_special_tokens if token.special else twin.add_tokens)([token])
    assert twin.get_added_tokens_decoder() == added
    return twin
