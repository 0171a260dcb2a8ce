# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a model that hold its chat template and the texts of its special tokens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail_data.tokenizing.tokenizer import Bytes, Pretrained

CHATML = "chatml"
_START, _END = "<|im_start|>", "<|im_end|>"


def read_json(file: Path) -> dict[str, Any]:
    """Returns the object in a file; empty without the file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__} in the place of an object")
        return value
    except ValueError as error:
        raise ValueError(
            f"a configuration must be JSON in UTF-8: got {file}: {error}. Mend it, or load the "
            "template's own .jinja file from elsewhere."
        ) from error


def text_of(token: Any) -> str | None:
    """Returns the text of a special token in tokenizer_config.json.

    It is the value itself, {"content": text}, or "" for null. None means: no token, such as the
    boolean add_bos_token.
    """
    if token is None:
        return ""
    if isinstance(token, dict):
        return token.get("content")
    return token if isinstance(token, str) else None


def find_source(path: Path, config: Mapping[str, Any], name: str) -> str:
    """Returns the Jinja source of a template.

    Args:
        path: A model's directory, a .jinja file or a tokenizer_config.json.
        config: The tokenizer_config.json of the directory.
        name: Name of the template.

    Raises:
        ValueError: There is no such template.
    """
    standard = "chat_template.jinja"
    extra = standard if name == "default" else f"additional_chat_templates/{name}.jinja"
    file = path / extra if path.is_dir() else path
    if file.is_file() and file.suffix != ".json":
        return file.read_text(encoding="utf-8")
    templates = (config if path.is_dir() else read_json(path)).get("chat_template")
    if isinstance(templates, list):
        templates = {entry["name"]: entry["template"] for entry in templates}
    named = {"default": templates} if isinstance(templates, str) else templates or {}
    if name not in named:
        raise ValueError(
            f"a chat template must exist: got path={str(path)!r}, name={name!r} with the templates "
            f"{sorted(named)}. Give a .jinja file, or a directory with {standard}."
        )
    return named[name]


def chatml_source(tokenizer: Bytes | Pretrained | None = None) -> str:
    """Returns the Jinja source of ChatML. See `Template.chatml`.

    Args:
        tokenizer: The tokenizer. None: one with <|im_start|> and <|im_end|>, and no bos.

    Raises:
        ValueError: Text cannot hold the token that would end a turn.
    """
    bos, end = "", _END
    if tokenizer is not None:
        if tokenizer.find_special(_END) != _END:
            end = _name_of(tokenizer, tokenizer.eos_id)
        if tokenizer.bos_id is not None:
            bos = _name_of(tokenizer, tokenizer.bos_id)
    turn = f"'{_START}' + message.role + '\\n' + message.content + {_literal(end)} + '\\n'"
    return (
        (f"{{{{ {_literal(bos)} }}}}" if bos else "")
        + f"{{% for message in messages %}}{{{{ {turn} }}}}{{% endfor %}}"
        + f"{{% if add_generation_prompt %}}{{{{ '{_START}assistant\\n' }}}}{{% endif %}}\n"
    )


def _name_of(tokenizer: Bytes | Pretrained, token: int) -> str:
    """Returns the name under which a template writes an id."""
    if isinstance(tokenizer, Bytes):
        name = {256: "<|bos|>", 257: "<|eos|>"}[token]
    else:
        name = tokenizer.name_of(token) or ""
    if tokenizer.find_special(name) != name:
        raise ValueError(
            f"ChatML must begin texts and end turns with special tokens: got {name!r} for id "
            f"{token}, which is none. Make it a special token in tokenizer.json, or pass a Jinja "
            "template."
        )
    return name


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
