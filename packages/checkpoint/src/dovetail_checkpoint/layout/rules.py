# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rules that turn the leaves of a checkpoint into the wanted leaves.

Rules apply in order to the leaves by name (names.match_names, patterns in _patterns.py), each to
the result of the previous one. Nothing is read: a leaf is a list of pieces of source leaves
(pieces.py). A rule without a match is an error, because a misspelt pattern leaves a leaf behind.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import jax.numpy as jnp

from dovetail_checkpoint._patterns import Pattern, alternatives, no_match
from dovetail_checkpoint.layout import pieces
from dovetail_checkpoint.layout.pieces import Built

Leaves = Mapping[str, Built]
_WILDCARD = re.compile(r"\*\*|\*|#")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule, made by the functions of this module.

    Attributes:
        call: The call as the user wrote it, for messages.
        apply: Returns the leaves after the rule. Raises ValueError if the rule does not fit them.
        drops: Whether the rule drops leaves on purpose.
        initial: Leaves of the target that keep their values.
    """

    call: str
    apply: Callable[[Leaves], Leaves]
    drops: bool = False
    initial: Pattern | None = None

    def __str__(self) -> str:
        return self.call


def rename(pattern: str, to: str) -> Rule:
    """Renames each matching leaf: rename("model.layers.*.w", "blocks.*.w")."""
    call = f"rename({pattern!r}, {to!r})"
    source, target = _pair(call, pattern, to)

    def apply(leaves: Leaves) -> Leaves:
        parts, built = {}, {}
        for name, captures in _matches(call, source, leaves).items():
            new = _filled(target, captures)
            _put(call, built, new, leaves[name])
            parts[new] = [name]
        return _replaced(call, leaves, parts, built)

    return Rule(call=call, apply=apply)


def stack(pattern: str, to: str, *, axis: int = 0) -> Rule:
    """Stacks leaves along a new axis: stack("layers.#.**", "layers.**").

    Args:
        pattern: Leaves to stack. `#` stands for the index; it must run from 0 without gaps.
        to: Name of the stack: the pattern without `#`.
        axis: The new axis.
    """
    call = f"stack({pattern!r}, {to!r}, axis={axis})"
    source, target = _indexed(call, pattern, to)
    at = _wildcards(source).index("#")

    def apply(leaves: Leaves) -> Leaves:
        groups: dict[str, dict[int, str]] = {}
        for name, captures in _matches(call, source, leaves).items():
            new = _filled(target, captures[:at] + captures[at + 1 :])
            index = int(captures[at])
            if index in groups.setdefault(new, {}):
                raise _twice(call, f"{new}, index {index}")
            groups[new][index] = name
        parts, built = {}, {}
        for new, by_index in groups.items():
            _check_indices(call, new, by_index)
            parts[new] = [by_index[i] for i in range(len(by_index))]
            alike = _alike(call, parts[new], leaves)
            built[new] = pieces.stacked(alike, _axis(call, new, axis, len(alike[0].shape) + 1))
        return _replaced(call, leaves, parts, built)

    return Rule(call=call, apply=apply)


def unstack(pattern: str, to: str, *, axis: int = 0) -> Rule:
    """Reverses `stack`: unstack("layers.**", "layers.#.**").

    Args:
        pattern: Leaves to unstack.
        to: Names of the slices, with `#` for the index.
        axis: The axis to remove.
    """
    call = f"unstack({pattern!r}, {to!r}, axis={axis})"
    target, source = _indexed(call, to, pattern)
    at = _wildcards(target).index("#")

    def apply(leaves: Leaves) -> Leaves:
        parts, built = {}, {}
        for name, captures in _matches(call, source, leaves).items():
            leaf = _array(call, name, leaves[name])
            layers = pieces.unstacked(leaf, _axis(call, name, axis, len(leaf.shape)))
            for i, layer in enumerate(layers):
                new = _filled(target, (*captures[:at], str(i), *captures[at:]))
                _put(call, built, new, layer)
                parts[new] = [name]
        return _replaced(call, leaves, parts, built)

    return Rule(call=call, apply=apply)


def split(pattern: str, to: Sequence[str], *, axis: int, sizes: Sequence[int] = ()) -> Rule:
    """Splits a leaf along an axis: split("**.qkv", ("**.q", "**.k", "**.v"), axis=-1).

    Args:
        pattern: Leaves to split.
        to: Names of the results.
        axis: The axis.
        sizes: Extent of each result. Default: all equal.
    """
    call = f"split({pattern!r}, {tuple(to)!r}, axis={axis}, sizes={tuple(sizes)!r})"
    pairs = [_pair(call, pattern, each) for each in _several(call, to)]
    if sizes and len(sizes) != len(pairs):
        raise ValueError(f"split needs one size for each part, got {call}; give {len(pairs)} sizes")

    def apply(leaves: Leaves) -> Leaves:
        parts, built = {}, {}
        for name, captures in _matches(call, pairs[0][0], leaves).items():
            leaf = _array(call, name, leaves[name])
            along = _axis(call, name, axis, len(leaf.shape))
            ends = _ends(call, name, leaf.shape[along], sizes, len(pairs))
            for (_, target), (start, stop) in zip(pairs, pairwise(ends), strict=True):
                new = _filled(target, captures)
                _put(call, built, new, pieces.sliced(leaf, along, start, stop))
                parts[new] = [name]
        return _replaced(call, leaves, parts, built)

    return Rule(call=call, apply=apply)


def fuse(patterns: Sequence[str], to: str, *, axis: int) -> Rule:
    """Joins leaves along an axis, the reverse of `split`.

    fuse(("**.q", "**.k", "**.v"), "**.qkv", axis=-1)

    Args:
        patterns: Leaves to join, in order. Each must match wherever the others do.
        to: Name of the result.
        axis: The axis.
    """
    call = f"fuse({tuple(patterns)!r}, {to!r}, axis={axis})"
    pairs = [_pair(call, each, to) for each in _several(call, patterns)]

    def apply(leaves: Leaves) -> Leaves:
        groups: dict[str, list[str]] = {}
        for source, target in pairs:
            for name, captures in _matches(call, source, leaves).items():
                groups.setdefault(_filled(target, captures), []).append(name)
        built = {}
        for new, names in groups.items():
            if len(names) != len(pairs):
                raise ValueError(
                    f"{call} needs {len(pairs)} leaves for {new}, got {names}; "
                    "narrow the patterns to where all are"
                )
            along = _axis(call, new, axis, len(leaves[names[0]].shape))
            built[new] = pieces.joined(_alike(call, names, leaves, but=along), along)
        return _replaced(call, leaves, groups, built)

    return Rule(call=call, apply=apply)


def transpose(pattern: str, axes: Sequence[int]) -> Rule:
    """Reorders axes, like numpy.transpose: transpose("**.kernel", (1, 0))."""
    call = f"transpose({pattern!r}, {tuple(axes)!r})"

    def turn(name: str, leaf: Built) -> Built:
        if sorted(axes) != list(range(len(leaf.shape))):
            raise ValueError(
                f"{call} must name each axis of {name} once, got a leaf of shape {leaf.shape}; "
                "narrow the pattern, or give as many axes"
            )
        return pieces.transposed(leaf, axes)

    return _each(call, pattern, turn)


def cast(pattern: str, dtype: Any) -> Rule:
    """Converts values: cast("**", "bfloat16"). Rounds to nearest even, as JAX does."""
    name = str(jnp.dtype(dtype))
    return _each(f"cast({pattern!r}, {name!r})", pattern, lambda _, x: pieces.converted(x, name))


def drop(*patterns: str) -> Rule:
    """Drops leaves: drop("opt.**", "step")."""
    return _dropping("drop", patterns, keep=False)


def only(*patterns: str) -> Rule:
    """Drops all leaves but these: only("embed", "layers.0.**")."""
    return _dropping("only", patterns, keep=True)


def keep_init(pattern: str) -> Rule:
    """Keeps the values of matching leaves of the target, saved or not.

    These leaves of the target must be arrays, not abstract.
    """
    initial = Pattern(pattern)

    def apply(leaves: Leaves) -> Leaves:
        return {name: x for name, x in leaves.items() if initial.captures(name) is None}

    return Rule(call=f"keep_init({pattern!r})", apply=apply, drops=True, initial=initial)


def _dropping(verb: str, patterns: Sequence[str], *, keep: bool) -> Rule:
    call = f"{verb}({', '.join(map(repr, patterns))})"
    if not patterns:
        raise ValueError(f'{verb} needs at least one pattern, got none; {verb}("opt.**")')
    compiled = [Pattern(text) for text in patterns]

    def apply(leaves: Leaves) -> Leaves:
        named = {name for pattern in compiled for name in _matches(call, pattern, leaves)}
        return {name: leaf for name, leaf in leaves.items() if (name in named) == keep}

    return Rule(call=call, apply=apply, drops=True)


def _each(call: str, pattern: str, change: Callable[[str, Built], Built]) -> Rule:
    source = Pattern(pattern)

    def apply(leaves: Leaves) -> Leaves:
        matched = _matches(call, source, leaves)
        changed = {name: change(name, _array(call, name, leaves[name])) for name in matched}
        return {**leaves, **changed}

    return Rule(call=call, apply=apply)


def _matches(call: str, pattern: Pattern, leaves: Leaves) -> dict[str, tuple[str, ...]]:
    captured = {name: pattern.captures(name) for name in leaves}
    matched = {name: captures for name, captures in captured.items() if captures is not None}
    if matched:
        return matched
    raise ValueError(f"{call} must match a leaf, got {pattern.text!r}, {no_match(pattern, leaves)}")


def _replaced(
    call: str, leaves: Leaves, parts: Mapping[str, Sequence[str]], built: Leaves
) -> Leaves:
    """Returns the leaves with each of `built` in the place of the first of its `parts`."""
    at: dict[str, list[str]] = {}
    for new, names in parts.items():
        at.setdefault(names[0], []).append(new)
    gone = {name for names in parts.values() for name in names}
    result: dict[str, Built] = {}
    for name, leaf in leaves.items():
        after = {new: built[new] for new in at.get(name, ())}
        if name not in gone:
            after[name] = leaf
        for new in sorted(result.keys() & after.keys()):
            raise _twice(call, new)
        result |= after
    return result


def _put(call: str, built: dict[str, Built], new: str, leaf: Built) -> None:
    if new in built:
        raise _twice(call, new)
    built[new] = leaf


def _twice(call: str, name: str) -> ValueError:
    return ValueError(f"{call} must give new names, got {name!r} twice; rename or drop one before")


def _pair(call: str, pattern: str, to: str) -> tuple[Pattern, Pattern]:
    source, target = Pattern(pattern), _target(call, to)
    wildcards = _wildcards(source)
    if wildcards != _wildcards(target):
        raise ValueError(
            f"both sides must have the same wildcards in the same order, got {call}; "
            f"write {' '.join(wildcards) or 'no wildcard'} on the other side too"
        )
    return source, target


def _wildcards(pattern: Pattern) -> tuple[str, ...]:
    """Returns the wildcards in order. Raises ValueError if the alternatives differ in them."""
    each = {tuple(_WILDCARD.findall(text)) for text in alternatives(pattern.text)}
    if len(each) > 1:
        raise ValueError(
            "the alternatives of this pattern must have the same wildcards, got "
            f"{pattern.text!r}; write a pattern for each"
        )
    return each.pop()


def _target(call: str, to: str) -> Pattern:
    if "{" in to:
        raise ValueError(
            f"the names that a rule gives cannot have alternatives, got {call}; write a rule for "
            "each"
        )
    return Pattern(to)


def _filled(pattern: Pattern, captures: Sequence[str]) -> str:
    """Returns the target's name with the captures for its wildcards, in order."""
    texts = iter(captures)
    segments = pattern.text.replace("/", ".").split(".")
    filled = [_WILDCARD.sub(lambda _: next(texts), segment) for segment in segments]
    # A ** that matched nothing leaves no segment.
    kept = [f for f, segment in zip(filled, segments, strict=True) if f or segment != "**"]
    return ".".join(kept)


def _indexed(call: str, pattern: str, to: str) -> tuple[Pattern, Pattern]:
    """Compiles a pair of patterns, one with one # more than the other."""
    source, target = Pattern(pattern), _target(call, to)
    wildcards = _wildcards(source)
    rest = tuple(wildcard for wildcard in wildcards if wildcard != "#")
    if wildcards.count("#") != 1 or rest != _wildcards(target):
        raise ValueError(
            "the side of the single leaves must have one # for the index and else the same "
            f'wildcards, got {call}; write "layers.#.**" for one side and "layers.**" for the other'
        )
    return source, target


def _several(call: str, patterns: Sequence[str]) -> Sequence[str]:
    if isinstance(patterns, str) or len(patterns) < 2:
        raise ValueError(
            f'the parts must be two patterns or more, got {call}; write ("**.q", "**.k")'
        )
    return patterns


def _axis(call: str, name: str, axis: int, ndim: int) -> int:
    if not -ndim <= operator.index(axis) < ndim:
        raise ValueError(
            f"the axis must be one of {ndim} of {name}, got {call}; use -1 for the last"
        )
    return axis % ndim


def _ends(call: str, name: str, extent: int, sizes: Sequence[int], parts: int) -> list[int]:
    sizes = sizes or [extent // parts] * parts
    if sum(sizes) != extent or min(sizes) < 1:
        raise ValueError(
            f"the parts must have sizes that add up to the axis of {name}, got {list(sizes)} for "
            f"{extent} in {call}; give sizes=..."
        )
    return [0, *accumulate(sizes)]


def _check_indices(call: str, new: str, by_index: Mapping[int, str]) -> None:
    missing = sorted(set(range(max(by_index) + 1)) - by_index.keys())
    if missing:
        raise ValueError(
            f"{call} needs the indices from 0 to {max(by_index)} for {new}, got none for {missing};"
            " rename or drop the leaves beside"
        )


def _array(call: str, name: str, leaf: Built) -> Built:
    if leaf.dtype.startswith(("python ", "key<")):
        raise ValueError(
            f"{call} works on arrays, got {name}: {leaf.dtype}; a number or key can be renamed, "
            "dropped, or kept as it is: narrow the pattern"
        )
    return leaf


def _alike(
    call: str, names: Sequence[str], leaves: Leaves, *, but: int | None = None
) -> list[Built]:
    """Returns the leaves, checked for one dtype and one shape (except for one axis)."""
    built = [_array(call, name, leaves[name]) for name in names]
    kinds = {
        (x.dtype, len(x.shape), *(n for i, n in enumerate(x.shape) if i != but)) for x in built
    }
    if len(kinds) > 1:
        listed = ", ".join(
            f"{name}: {x.dtype}{list(x.shape)}" for name, x in zip(names, built, strict=True)
        )
        raise ValueError(
            f"{call} needs leaves alike in dtype and shape, got {listed}; cast or split them before"
        )
    return built
