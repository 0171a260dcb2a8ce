# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a model that hold its chat template and the texts of its special tokens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
