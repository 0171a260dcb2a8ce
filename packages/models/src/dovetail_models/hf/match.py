# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Assigns the tensors of a directory to the leaves of a model, from names and shapes alone."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from dovetail_models import _patterns
from dovetail_models.hf.accept import accepted
from dovetail_models.hf.errors import FilesError
from dovetail_models.hf.tensors import Tensor
from dovetail_models.tables.config_json import near
from dovetail_models.tables.ops import Op, Shape
from dovetail_models.tables.table import Family, Sources, candidates, listed, matches

T = TypeVar("T")
_log = logging.getLogger(__name__)
# Rows of a tied head compared with the embedding at a time.
_ROWS = 1024
# Files from before 2023-08 hold the frequencies of RoPE, which follow from config.json.
_FREQUENCIES = "*rotary_emb.inv_freq"
# Names per side of the error about tensors that do not fit.
_LINES = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """A parameter to fill.

    Attributes:
        shape: Shape of the parameter.
        names: Logical name of each dimension.
    """

    shape: Shape
    names: tuple[str | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The tensors of one leaf: a single one, or a stack.

    Attributes:
        name: Tensor name in the files; a stack has `{e}` for the index.
        op: Maps each tensor to the leaf or to its entry.
        tensors: One tensor, or one per entry of the leaf's first axis.
    """

    name: str
    op: Op
    tensors: tuple[Tensor, ...]

    @property
    def stacked(self) -> bool:
        """Whether entry e of the leaf comes from tensor e."""
        return "{e}" in self.name

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the leaf.

        Raises:
            ValueError: The tensors of a stack differ in dtype.
        """
        kinds = {tensor.dtype for tensor in self.tensors}
        if len(kinds) > 1:
            raise ValueError(
                f"The tensors of a stack must have one dtype, got {self.name} with "
                f"dtypes={sorted(map(str, kinds))}. Save the model in one dtype."
            )
        return kinds.pop()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matched:
    """The result of `match`.

    Attributes:
        sources: Source of each leaf.
        copy: (name, tensor) of a second copy of the embedding and of the embedding, or None.
    """

    sources: dict[str, Source]
    copy: tuple[tuple[str, Tensor], tuple[str, Tensor]] | None

    def check_copy(self) -> None:
        """Compares the two copies of the embedding.

        Raises:
            ValueError: The copies differ.
        """
        if self.copy is None:
            return
        (name, tensor), (original, embedding) = self.copy
        if not _equal(tensor.read(), embedding.read()):
            raise ValueError(
                f"With tie_word_embeddings=true {name} must equal {original}, got two that differ. "
                "Set tie_word_embeddings=false in config.json to keep both, or remove one."
            )


def match(
    family: Family,
    leaves: Mapping[str, Leaf],
    tensors: Mapping[str, Tensor],
    *,
    tie: bool,
    dropped: Iterable[str] = (),
) -> Matched:
    """Assigns tensors to leaves. Reads no tensor.

    Logs a warning for omitted tensors: dropped ones, and the rows of a padded vocabulary.

    Args:
        family: Family of the model.
        leaves: Leaves by dotted path.
        tensors: Tensors by name in the files.
        tie: The model has no head of its own.
        dropped: Patterns of tensors to omit.

    Returns:
        The source of each leaf.

    Raises:
        ValueError: Tensors are missing, unexpected or of another shape. One message lists all.
    """
    tensors = _with_usual_names(family, tensors)
    remaining = _without_prefix(family, tensors)
    buffers = (*family.buffers, _FREQUENCIES)
    remaining = {name: t for name, t in remaining.items() if not matches(name, buffers)}
    remaining = _without_dropped(tuple(dropped), remaining)
    copy = None
    if tie and family.tied is not None and family.tied[0] in remaining:
        name, original = family.tied
        tensor = remaining.pop(name)
        copy = ((name, tensor), (original, remaining[original])) if original in remaining else None
    rows = _best(candidates(family, leaves), leaves, remaining)
    bare = not any(name.startswith(family.prefix) for name in tensors)

    def shown(name: str) -> str:
        return name if bare else family.on_disk(name)

    wanted = _wanted(_padded(leaves, rows, remaining), rows)
    _check(wanted, {name: tensor.shape for name, tensor in remaining.items()}, shown)
    filled = {
        leaf: Source(
            name=shown(name), op=op, tensors=tuple(remaining[n] for n in _names(leaves[leaf], name))
        )
        for leaf, (name, op) in rows.items()
    }
    return Matched(sources=filled, copy=copy)


def without(specs: Mapping[str, T], ignore: tuple[str, ...]) -> dict[str, T]:
    """Removes the tensors that match a pattern, and logs a warning.

    Args:
        specs: Tensors by name.
        ignore: Patterns, beside those of `accepting`. Each of these must match a tensor.

    Raises:
        ValueError: A pattern of `ignore` matches no tensor.
    """
    patterns = [*ignore, *accepted().ignore]
    extra = [name for name in specs if patterns and _patterns.matches(patterns, name)]
    for pattern in ignore:
        if not any(_patterns.matches(pattern, name) for name in extra):
            raise ValueError(
                f"A pattern of ignore must match a tensor of the files, got ignore={pattern!r}"
                f"{near(pattern, specs)}. Leave it out, or write it as '**.inv_freq'."
            )
    if extra:
        _log.warning("Left out, as the caller asks: %s", listed(extra))
    return {name: spec for name, spec in specs.items() if name not in extra}


def _with_usual_names(family: Family, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Returns the tensors of a decoder by their usual names.

    The embedding tells what the files put before every name: nothing for the usual names and for
    those of a base model (`embed_tokens.weight`), or a wrapper's prefix (`model.model.`).
    """
    head, usual = family.tied or ("", "")
    base = "model." if usual.startswith("model.") else family.prefix
    short = usual.removeprefix(base)
    if not base or any(name in tensors for name in (usual, family.prefix + usual)):
        return tensors
    ends = [name for name in tensors if name == short or name.endswith(f".{short}")]
    if len(ends) != 1:
        return tensors
    extra = ends[0].removesuffix(short)
    # `model.model.embed_tokens.weight` is a whole model under `model.`.
    whole = extra.endswith(base)
    extra = extra.removesuffix(base)
    renamed = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix(extra)
        plain = plain if whole or plain == head or family.prefix else base + plain
        if plain in renamed:
            raise ValueError(
                f"A tensor must come with prefix {extra!r} or without, got {plain} with both. "
                "Remove one of each."
            )
        renamed[plain] = tensor
    _log.info("The names of the files begin with %r in place of %r.", ends[0], usual)
    return renamed


def _without_prefix(family: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors by table name. Files may use the family's prefix or omit it."""
    stripped = {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    if len(stripped) < len(tensors):
        twice = [n for n in tensors if family.prefix + n in tensors and family.prefix]
        raise ValueError(
            f"A tensor must come with prefix {family.prefix!r} or without, got {listed(twice)} "
            "with both. Remove one of each."
        )
    return stripped


def _without_dropped(patterns: tuple[str, ...], found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Removes the tensors with a name in `patterns` and logs a warning."""
    dropped = {name for name in found if matches(name, patterns)}
    if dropped:
        _log.warning("Left out, since no module here computes it: %s", listed(sorted(dropped)))
    return {name: tensor for name, tensor in found.items() if name not in dropped}


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return all(np.array_equal(a[i : i + _ROWS], b[i : i + _ROWS]) for i in range(0, len(a), _ROWS))


def _best(
    layouts: list[Sources], leaves: Mapping[str, Leaf], found: Mapping[str, Tensor]
) -> Sources:
    """Returns the layout with the best match of names to the files; the first of equals."""
    return min(layouts, key=lambda rows: len(_wanted(leaves, rows).keys() ^ found.keys()))


def _names(leaf: Leaf, name: str) -> list[str]:
    """Returns the tensor names of a leaf."""
    if "{e}" not in name:
        return [name]
    return [name.replace("{e}", str(e)) for e in range(leaf.shape[0])]


def _wanted(leaves: Mapping[str, Leaf], rows: Mapping[str, tuple[str, Op]]) -> dict[str, Shape]:
    """Returns {tensor: shape} for the leaves."""
    wanted: dict[str, Shape] = {}
    for leaf, (name, op) in rows.items():
        shape = leaves[leaf].shape
        shape = op.shape(shape[1:] if "{e}" in name else shape)
        for tensor in _names(leaves[leaf], name):
            assert wanted.setdefault(tensor, shape) == shape, (leaf, tensor, wanted[tensor], shape)
    return wanted


def _padded(
    leaves: Mapping[str, Leaf], rows: Mapping[str, tuple[str, Op]], found: Mapping[str, Tensor]
) -> Mapping[str, Leaf]:
    """Returns the leaves with the vocabulary rows of the files, if all files agree on more rows.

    Files pad a vocabulary to a multiple of a power of two. No token uses the rows beyond
    config.json's vocab_size.
    """
    vocab = [leaf for leaf in rows if "vocab" in leaves[leaf].names]
    sizes = [
        {
            n
            for n in found[name].shape
            if op.shape(_resized(leaves[leaf], n).shape) == found[name].shape
        }
        for leaf, (name, op) in rows.items()
        if leaf in vocab and name in found
    ]
    if not sizes:
        return leaves
    size = _vocab_size(leaves[vocab[0]])
    larger = [n for n in set.intersection(*sizes) if n > size]
    if not larger:
        return leaves
    _log.warning(
        "Cut the vocabulary from the %d rows of the files to vocab_size=%d of config.json: the "
        "rest is padding.",
        larger[0],
        size,
    )
    return {n: _resized(leaf, larger[0]) if n in vocab else leaf for n, leaf in leaves.items()}


def _vocab_size(leaf: Leaf) -> int:
    return leaf.shape[leaf.names.index("vocab")]


def _resized(leaf: Leaf, size: int) -> Leaf:
    shape = [size if name == "vocab" else n for n, name in zip(leaf.shape, leaf.names, strict=True)]
    return dataclasses.replace(leaf, shape=tuple(shape))


def _check(
    wanted: Mapping[str, Shape], found: Mapping[str, Shape], shown: Callable[[str], str]
) -> None:
    missing, unexpected = wanted.keys() - found.keys(), found.keys() - wanted.keys()

    def close(name: str, options: Iterable[str]) -> str:
        # Compare names of equal numbers only: all pairs would take minutes.
        same = [shown(option) for option in options if _numbers(option) == _numbers(name)]
        return near(shown(name), same)

    lines = [
        *_section("missing", missing, lambda n: f"{shown(n)} {wanted[n]}{close(n, unexpected)}"),
        *_section("unexpected", unexpected, lambda n: f"{shown(n)} {found[n]}{close(n, missing)}"),
        *_section(
            "misshapen",
            {name for name in wanted.keys() & found.keys() if wanted[name] != found[name]},
            lambda n: f"{shown(n)}: {found[n]} where config.json gives {wanted[n]}",
        ),
    ]
    if lines:
        listing = "\n  ".join(lines)
        raise FilesError(
            f"The tensors of the files must be those of config.json, got\n  {listing}\n"
            "Use the config.json that was saved with these files; for extra tensors that the model "
            'does not need pass ignore=("**.NAME",).'
        )


def _numbers(name: str) -> list[str]:
    """Returns the layer and expert numbers of a name."""
    return [component for component in name.split(".") if component.isdigit()]


def _section(kind: str, names: set[str], line: Callable[[str], str]) -> list[str]:
    """Returns a line per name, for at most `_LINES` names, and the count of the rest."""
    shown = [f"{kind} {line(name)}" for name in sorted(names)[:_LINES]]
    more = [f"and {len(names) - _LINES} more {kind}"] if len(names) > _LINES else []
    return shown + more
