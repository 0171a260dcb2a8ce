# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Columns of JSON text, at any depth of a table, to values.

A struct of Arrow has the keys of all rows, in one order and each of one type. JSON text keeps the
dictionary that was written, so `datasets` stores tools and calls as it (its feature `Json`). Such a
column says so by Arrow's extension type arrow.json, by the logical type of Parquet, by the
features that `datasets` writes beside the schema, or by a declaration of the reader.
"""

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from dovetail_data.sources import _json

Decode: TypeAlias = Callable[[Any], Any]

_EXTENSION = "arrow.json"
_EXTENSION_KEY = b"ARROW:extension:name"  # for a pyarrow that does not know the type
_FEATURES_KEY = b"huggingface"
_LIST_STEPS = ("list", "element", "item", "array", "bag")  # of Parquet's own paths


def decoder(
    schema: Any, declared: Sequence[str], *, file: str, implied: Sequence[str] = ()
) -> Decode | None:
    """Returns the function that decodes the JSON of a record, or None without such columns.

    Args:
        schema: Schema of the table.
        declared: Paths of further columns, such as "tools" or "messages.tool_calls".
        file: Path for messages.
        implied: Paths from `logical`.

    Raises:
        ValueError: A declared column is absent, or is no text.
    """
    columns = {field.name: field for field in schema}
    features = _features(schema.metadata or {})
    known = dict(_paths(columns.values()))
    for path in declared:
        _check_text(path, known, file)
    text = {*declared, *implied}
    decoders = {
        name: decode
        for name, field in columns.items()
        if (decode := _of(field, features.get(name), text, name))
    }
    return _fields(decoders) if decoders else None


def logical(schema: Any) -> list[str]:
    """Returns the paths of the columns that Parquet's own schema calls JSON."""
    leaves = (schema.column(i) for i in range(len(schema)))
    return [
        ".".join(step for step in leaf.path.split(".") if step not in _LIST_STEPS)
        for leaf in leaves
        if leaf.logical_type.type == "JSON"
    ]


def _features(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Returns the features that `datasets` wrote; none where they cannot be read."""
    try:
        features = json.loads(metadata[_FEATURES_KEY])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _paths(fields: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, type) of each field, with lists passed through."""
    for field in fields:
        path = f"{before}{field.name}"
        kind = _items(field.type)
        yield path, kind
        yield from _paths(_children(kind), f"{path}.")


def _items(kind: Any) -> Any:
    """Returns the type of the items of a list, at any depth; others as they are."""
    while hasattr(kind, "value_field") and kind.num_fields == 1:
        kind = kind.value_type
    return kind


def _children(kind: Any) -> list[Any]:
    is_struct = str(kind).startswith("struct<")
    return [kind.field(i) for i in range(kind.num_fields)] if is_struct else []


def _of(field: Any, feature: Any, declared: set[str], path: str) -> Decode | None:
    """Returns the function that decodes the values of a field, or None without JSON below."""
    kind = field.type
    metadata = field.metadata or {}
    if (
        (path in declared and _is_text(kind))
        or getattr(kind, "extension_name", None) == _EXTENSION
        or metadata.get(_EXTENSION_KEY) == _EXTENSION.encode()
        or (isinstance(feature, dict) and feature.get("_type") == "Json" and _is_text(kind))
    ):
        return _json.loads
    if hasattr(kind, "value_field") and kind.num_fields == 1:
        inner = feature.get("feature") if isinstance(feature, dict) else None
        decode = _of(kind.value_field, inner, declared, path)
        return None if decode is None else _list(decode)
    named = feature if isinstance(feature, dict) else {}
    decoders = {
        child.name: decode
        for child in _children(kind)
        if (decode := _of(child, named.get(child.name), declared, f"{path}.{child.name}"))
    }
    return _fields(decoders) if decoders else None


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view", "binary", "large_binary")


def _list(decode: Decode) -> Decode:
    return lambda items: None if items is None else [decode(item) for item in items]


def _fields(decoders: Mapping[str, Decode]) -> Decode:
    def decode(record: Any) -> Any:
        if record is None:
            return None
        return {k: decoders[k](v) if k in decoders else v for k, v in record.items()}

    return decode


def _check_text(path: str, known: Mapping[str, Any], file: str) -> None:
    if path not in known:
        near = difflib.get_close_matches(path, known, n=1) or sorted(known)[:5]
        raise ValueError(
            f"json_columns must be columns of the files: got {path!r}, which {file} lacks. "
            f"Pass for example {list(near)}."
        )
    kind = known[path]
    if not _is_text(kind) and getattr(kind, "extension_name", None) != _EXTENSION:
        raise ValueError(
            f"json_columns must be columns of text: got {path!r} of type {str(kind)[:60]} in "
            f"{file}. Leave it out of json_columns."
        )
