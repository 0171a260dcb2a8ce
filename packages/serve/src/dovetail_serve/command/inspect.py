# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The action `inspect`: the manifest of a bundle, readable."""

import argparse
import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail_serve._command import DONE, add_json, printable
from dovetail_serve.bundle.folder import Folder, open_bundle
from dovetail_serve.bundle.manifest import Manifest
from dovetail_serve.types import HostFunction, Platform, Tensor

WORDS = {"path": "PATH"}
_COLUMNS, _INDENT = 80, 16


def declare(parser: argparse.ArgumentParser) -> None:
    """Show the signature, platforms, weights, files and origin of a bundle.

    Compares the manifest with its checksum, and reads no other file: for that, use verify. Starts
    no device.
    """
    parser.add_argument("path", metavar="PATH", help="bundle, such as repo/mlp/1")
    add_json(parser)


def run(args: argparse.Namespace) -> tuple[int, str]:
    """Returns the exit code and the description of a bundle."""
    folder = open_bundle(args.path)
    if args.json:
        return DONE, json.dumps({"path": args.path, **describe(folder)}, indent=2)
    return DONE, "\n".join([printable(args.path), *_lines(folder)])


def describe(folder: Folder) -> dict[str, Any]:
    """Returns the description of a bundle as JSON values."""
    manifest = folder.manifest
    plain = dataclasses.asdict(manifest)
    copied = ("created", "producer", "requires", "provenance", "x64", "before", "after", "mesh")
    return {
        "digest": folder.digest,
        **{name: plain[name] for name in copied},
        **plain["signature"],
        "batch_sizes": list(manifest.batch_sizes),
        "symbolic": manifest.symbolic is None,
        "symbolic_reason": manifest.symbolic,
        "platforms": plain["platforms"],
        "example": {"rows": manifest.golden.rows, "platform": manifest.golden.platform},
        "weights": _weights(manifest),
        "files": {name: entry.bytes for name, entry in sorted(manifest.files.items())},
        "bytes": sum(entry.bytes for entry in manifest.files.values()),
    }


def _weights(manifest: Manifest) -> dict[str, Any]:
    """Returns numbers of arrays, elements and bytes by dtype. A random key counts as its data."""
    by_dtype: dict[str, dict[str, int]] = {}
    for entry in manifest.weights.values():
        dtype = entry.dtype if entry.key is None else f"key<{entry.key}>"
        counts = by_dtype.setdefault(dtype, {"arrays": 0, "elements": 0})
        counts["arrays"] += 1
        counts["elements"] += math.prod(entry.shape)
    return dict(sorted(by_dtype.items()))


def _lines(folder: Folder) -> Iterator[str]:
    manifest = folder.manifest
    yield f"  {folder.digest}"
    yield from _row("created", manifest.created)
    yield from _row("producer", _joined(manifest.producer))
    if manifest.requires:
        yield from _row("requires", _joined(manifest.requires))
    for name, text in manifest.provenance.items():
        yield from _row(name, text)
    if manifest.x64:
        yield from _row("types", "64 bits")
    yield "inputs"
    yield from _tensors(manifest.signature.inputs)
    yield "outputs"
    yield from _tensors(manifest.signature.outputs)
    yield from _function("host function before", manifest.before)
    yield from _function("host function after", manifest.after)
    yield "programs"
    if manifest.batch_sizes:
        yield from _row("rows", ", ".join(map(str, manifest.batch_sizes)))
        yield from _row("any number", manifest.symbolic or "yes")
    else:
        yield from _row("rows", "no batch axis")
    if manifest.mesh:
        names = zip(manifest.mesh.axis_names, manifest.mesh.axis_sizes, strict=True)
        yield from _row("mesh", ", ".join(f"{name}={size}" for name, size in names))
    for platform in manifest.platforms:
        yield from _row(platform.name, _options(platform))
    yield "weights"
    if not manifest.weights:
        yield from _row("none", "")
    for dtype, counts in _weights(manifest).items():
        yield from _row(
            dtype, f"{_count(counts['elements'], 'element')} in {_count(counts['arrays'], 'array')}"
        )
    yield "files"
    for name, entry in sorted(manifest.files.items()):
        yield from _row(name, f"{entry.bytes:,} bytes")
    yield from _row("all", f"{sum(e.bytes for e in manifest.files.values()):,} bytes")


def _tensors(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in tensors.items():
        yield from _row(name, f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]")


def _function(title: str, function: HostFunction | None) -> Iterator[str]:
    if function:
        yield f"{title}: {function.name}"
        yield from _tensors(function.tensors)


def _options(platform: Platform) -> str:
    parts = [
        *([f"for {platform.device_kind}"] if platform.device_kind else []),
        *([f"weights {platform.weights}"] if platform.weights else []),
        *(f"{name}={value}" for name, value in platform.compiler_options.items()),
        *(f"layout {name}: {tuple(order)}" for name, order in platform.layouts.items()),
    ]
    return ", ".join(parts) or "no options"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _joined(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def _row(name: str, text: str) -> Iterator[str]:
    """Yields a name and its text in lines of 80 columns.

    A long name has a line of its own, and so has one before a digest, which is not broken. Both are
    texts of the bundle, so control characters are replaced.
    """
    name, text = printable(name), printable(" ".join(text.split()))
    first, indent = f"  {name}".ljust(_INDENT), _INDENT
    if max(map(len, text.split()), default=0) > _COLUMNS - _INDENT:
        indent = 4
    if len(first) > _INDENT or indent < _INDENT:
        yield first.rstrip()
        first = " " * indent
    yield from textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    ) or [first.rstrip()]
