# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a step: its items with the digest of each leaf, as one JSON item.

    {"format": 1, "digest": "fmix32-pair",
     "step": 10, "run": "5f0c...",
     "trees": {"params": {"tree": {"w": 0, "b": 1}, "leaves": [["w", "float32", [2, 3], "0f..."],
                                                              ["b", ...]]}},
     "objects": {"data": {"shared": true, "sha256": "9c..."}},
     "metrics": {"loss": 0.5},
     "sha256": "..."}

`step` and `run` say which step of which run this is (steps.py); manifests of older versions have
neither. `tree` is the plain tree (names.py) with the number of each leaf in its place. Orbax cannot
hold arrays without elements; these are in `leaves` alone. `sha256` covers the canonical JSON of
everything else, so a damaged manifest is not mistaken for the manifest of another model.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import numpy as np

from dovetail_checkpoint.proof.names import leaf_names, plain, shown_names

# The manifest is an item beside the user's.
MANIFEST_ITEM = "dovetail"

_FORMAT = 1
_DIGEST = "fmix32-pair"
# Only plain Orbax stores str leaves (storable.py).
_PYTHON = (bool, int, float, str)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One saved leaf.

    Attributes:
        name: Path in the tree (names.py).
        dtype: "float32", "key<fry>"; "python int", "python float" or "python bool" for a number,
            "python str" for a text of plain Orbax.
        shape: Shape of the array.
        digest: 16 hexadecimal digits; None in a step without a manifest.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str | None


@dataclass(frozen=True, kw_only=True)
class TreeItem:
    """A saved pytree: its plain tree of leaf numbers, and its leaves."""

    tree: Any
    leaves: tuple[Leaf, ...]

    def digested(self, digests: Iterator[str]) -> "TreeItem":
        """Returns the item with the next of the digests for each leaf."""
        leaves = tuple(replace(leaf, digest=next(digests)) for leaf in self.leaves)
        return TreeItem(tree=self.tree, leaves=leaves)


@dataclass(frozen=True, kw_only=True)
class ObjectItem:
    """A saved object state: one for all processes if `shared`, else {process number: state}."""

    shared: bool
    sha256: str | None


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The step that a manifest was written for.

    Attributes:
        step: Its number.
        run: 32 hexadecimal digits, made with the first step of a run and kept by the later ones.
    """

    step: int
    run: str


@dataclass(frozen=True, kw_only=True)
class Items:
    """The items of a step.

    Attributes:
        trees: Pytrees by item name.
        objects: Object states by item name.
        metrics: Numbers by name.
        identity: The step and the run; None if an older version or plain Orbax wrote the step.
    """

    trees: Mapping[str, TreeItem]
    objects: Mapping[str, ObjectItem]
    metrics: Mapping[str, float | int] = field(default_factory=dict)
    identity: Identity | None = None


class DamagedManifestError(Exception):
    """The manifest differs from its checksum."""


def encode(items: Items) -> dict[str, Any]:
    """Returns the JSON document of the manifest."""
    trees = {name: _encode_tree(item) for name, item in items.trees.items()}
    objects = {name: asdict(item) for name, item in items.objects.items()}
    body = {
        "format": _FORMAT,
        "digest": _DIGEST,
        "trees": trees,
        "objects": objects,
        "metrics": dict(items.metrics),
        **(asdict(items.identity) if items.identity else {}),
    }
    return {**body, "sha256": json_sha256(body)}


def decode(document: Any) -> Items:
    """Returns the items of the manifest.

    Raises:
        DamagedManifestError: The document differs from its checksum.
        RuntimeError: The document has another format number.
    """
    if not isinstance(document, dict) or "sha256" not in document:
        raise DamagedManifestError("is not a manifest")
    body = {key: value for key, value in document.items() if key != "sha256"}
    if json_sha256(body) != document["sha256"]:
        raise DamagedManifestError("does not have the sha256 that it states")
    if (body["format"], body["digest"]) != (_FORMAT, _DIGEST):
        raise RuntimeError(
            f"the manifest must have format={_FORMAT} and digest={_DIGEST!r}, got "
            f"format={body['format']!r} and digest={body['digest']!r}; "
            "read it with the version of dovetail-checkpoint that wrote it"
        )
    return Items(
        trees={name: _decode_tree(item) for name, item in body["trees"].items()},
        objects={name: ObjectItem(**item) for name, item in body["objects"].items()},
        metrics=body.get("metrics", {}),  # steps from before there were any have none
        identity=Identity(step=body["step"], run=body["run"]) if "run" in body else None,
    )


def json_sha256(value: Any) -> str:
    """Returns the SHA-256 of the canonical JSON of `value`: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def describe(tree: Any) -> TreeItem:
    """Returns the item for a tree of leaves or abstract leaves, without digests.

    Raises:
        TypeError: An entry is not a leaf; the error names it.
    """
    names, leaves, _ = leaf_names(tree)
    dtypes = list(map(_named_dtype, shown_names(names), leaves))
    shapes = [tuple(np.shape(leaf)) for leaf in leaves]
    # Orbax refuses arrays without elements.
    numbers = iter([None if 0 in shape else i for i, shape in enumerate(shapes)])

    described = tuple(
        Leaf(name=name, dtype=dtype, shape=shape, digest=None)
        for name, dtype, shape in zip(names, dtypes, shapes, strict=True)
    )
    return TreeItem(tree=plain(tree, lambda _: next(numbers)), leaves=described)


def _named_dtype(name: str, leaf: Any) -> str:
    try:
        return leaf_dtype(leaf)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def leaf_dtype(leaf: Any) -> str:
    """Returns the manifest's name for the dtype of a leaf or abstract leaf.

    Raises:
        TypeError: The value is not a leaf.
    """
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic):
        return _dtype_name(leaf.dtype)
    if type(leaf) in _PYTHON:
        return f"python {type(leaf).__name__}"
    raise TypeError(
        f"a leaf must be an array, a typed key or a number, got type={type(leaf).__name__}; "
        "give other state through an object with get_state/set_state"
    )


@functools.cache
def _dtype_name(dtype: Any) -> str:  # of thousands of leaves, while training waits
    """Returns the name. Either byte order has the same: on disk it is Orbax's."""
    return str(dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype)


def _encode_tree(item: TreeItem) -> dict[str, Any]:
    leaves = [[leaf.name, leaf.dtype, list(leaf.shape), leaf.digest] for leaf in item.leaves]
    return {"tree": item.tree, "leaves": leaves}


def _decode_tree(item: dict[str, Any]) -> TreeItem:
    leaves = tuple(
        Leaf(name=name, dtype=dtype, shape=tuple(shape), digest=digest)
        for name, dtype, shape, digest in item["leaves"]
    )
    return TreeItem(tree=item["tree"], leaves=leaves)
