# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of parameters and modules, and glob patterns over them.

A name is the path to a leaf or a module, joined by dots: `layers.3.attn.q.kernel`. A pattern is a
glob over names:

    layers.3.attn.q.kernel    one parameter
    layers.*.attn.q.kernel    `*` stands for any characters of one segment: also `lora_*`
    **.bias                   `**` stands for any number of segments, none included
    layers.#.mlp.**           `#` stands for an index: also `blocks_#`
    **.{q,k}.kernel           braces hold alternatives
    layers.{0..3}.**          and ranges of indices: `{0..6..2}` is every second

A pattern matches the whole name: `layers.1.**` never means layer 10. A slash is read as a dot, in
patterns and in names. The empty pattern matches the empty name, the only name of a tree with a
single leaf. Regular expressions are not supported: their special characters are refused, and the
message says how to write globs.

Kept verbatim in several packages: edit scripts/shared, then run scripts/copies.py.
"""

import dataclasses
import difflib
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax

Patterns: TypeAlias = str | Sequence[str]

_HOW = (
    "a name like 'layers.*.attn.{q,k}.kernel': * is any text of one segment, ** any segments, "
    "# an index"
)
# A segment with the dot before it, so that ** can match nothing; wildcards within a segment.
_SEGMENTS = {"": "", "*": r"\.([^.]+)", "**": r"((?:\.[^.]+)*)"}
_WITHIN = {"*": r"([^.]*)", "#": r"(0|[1-9][0-9]*)"}
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.([1-9]\d*))?")
_SHOWN = 8  # names in an error message; a model has thousands


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A parsed pattern. Raises ValueError for an invalid pattern, TypeError for other types.

    >>> Pattern("layers.#.**").captures("layers.7.attn.w")
    ('7', 'attn.w')
    """

    text: str

    def __post_init__(self) -> None:
        _regexes(self.text)

    def __str__(self) -> str:
        return self.text

    def captures(self, name: str) -> tuple[str, ...] | None:
        """Returns the text matched by each wildcard, or None if the name does not match."""
        segments = f".{name}" if name else ""
        matches = (regex.fullmatch(segments) for regex in _regexes(self.text))
        if match := next(filter(None, matches), None):
            return tuple(text.removeprefix(".") for text in match.groups())
        return None

    def matches(self, name: str) -> bool:
        """Tests whether the pattern matches the whole name."""
        return self.captures(name) is not None


def name_of(path: Iterable[Any]) -> str:
    """Returns the name of a path of JAX's keys, or of Flax's names and indices.

    A final attribute `value` is left out: it is the array of a Flax variable. So a parameter has
    one name in an `nnx.State`, in its pure dict, and in an optimizer's state.
    """
    keys = tuple(path)
    if keys[-1:] == (jax.tree_util.GetAttrKey("value"),):
        keys = keys[:-1]
    return jax.tree_util.keystr(keys, simple=True, separator=".").replace("/", ".")


def names_of(tree: Any) -> list[str]:
    """Returns the name of each leaf of `tree`, in the order of `jax.tree.leaves`."""
    return [name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def each_of(patterns: Patterns) -> tuple[Pattern, ...]:
    """Parses one string or a sequence of strings. Raises ValueError for an empty sequence."""
    texts = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    if not texts:
        raise ValueError("there must be a pattern, got none; write '**' for everything")
    return tuple(map(Pattern, texts))


def matches(patterns: Patterns, name: str) -> bool:
    """Tests whether any of the patterns matches the name."""
    return any(pattern.matches(name) for pattern in each_of(patterns))


def select(
    patterns: Patterns, names: Iterable[str], *, rule: str = "a pattern must match a parameter"
) -> list[str]:
    """Returns the names matched by at least one pattern, in the order of `names`.

    Args:
        patterns: A pattern or several.
        names: The names to choose from.
        rule: Beginning of the error message.

    Raises:
        ValueError: A pattern matches no name. The message gives the nearest names.
    """
    names, each = list(names), each_of(patterns)
    for pattern in each:
        if not any(map(pattern.matches, names)):
            raise ValueError(f"{rule}, got {pattern.text!r}, {no_match(pattern, names)}")
    return [name for name in names if any(pattern.matches(name) for pattern in each)]


def no_match(pattern: Pattern | str, names: Iterable[str]) -> str:
    """Returns the end of a message about an unmatched pattern, with a pattern to write instead."""
    names, text = list(names), str(pattern).replace("/", ".")
    reason = f"which matches none of {len(names)} names"
    # With more segments it may be the intended one. A dot within braces separates none.
    deep = re.sub(r"(?<![^.])\*(?![^.])(?![^{]*\})", "**", text)
    for wider in (deep, f"{deep}.**", f"**.{deep}", f"**.{deep}.**"):
        if text in ("", wider) or "**.**" in wider:
            continue
        if count := sum(map(Pattern(wider).matches, names)):
            return f"{reason}; write {wider!r}, which matches {count}"
    return f"{reason}; the nearest: {near(text, names)}"


def near(text: str, names: Iterable[str]) -> str:
    """Returns the names closest to `text`, for the end of a message."""
    close = difflib.get_close_matches(text.replace("/", "."), list(names), n=3, cutoff=0.0)
    return ", ".join(map(repr, close))


def few(names: Iterable[str]) -> str:
    """Returns the first names and the number of the others, for a message."""
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


@functools.lru_cache(maxsize=4096)
def _regexes(text: str) -> tuple[re.Pattern[str], ...]:
    """Returns a regular expression for each alternative, over names with a leading dot."""
    return tuple(
        re.compile("".join(map(_regex, alternative.split("."))))
        for alternative in alternatives(text)
    )


def _regex(segment: str) -> str:
    within = (_WITHIN.get(piece, re.escape(piece)) for piece in re.split(r"([*#])", segment))
    return _SEGMENTS.get(segment, r"\." + "".join(within))


def alternatives(text: str) -> tuple[str, ...]:
    """Returns the pattern for each choice of its braces. Raises as `Pattern` does."""
    if not isinstance(text, str):
        raise TypeError(f"a pattern must be a string, got {text!r}; write {_HOW}")
    pieces = re.split(r"\{([^{}]*)\}", text.replace("/", "."))  # in braces: at odd indices
    choices = [_choices(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    each = tuple(map("".join, itertools.product(*choices)))
    segments = {segment for alternative in each for segment in alternative.split(".")}
    rules = {
        "a pattern is a glob, not a regular expression": set(text) & set(r"\()|[]^$+?")
        or text == ".*",
        "braces must be closed and not nested": any(set(piece) & set("{}") for piece in pieces),
        "a pattern must have segments between single dots": text and "" in segments,
        "** must be a whole segment of a pattern (inside a segment it is *)": any(
            "**" in segment and segment != "**" for segment in segments
        ),
    }
    for rule, is_broken in rules.items():
        if is_broken:
            raise ValueError(f"{rule}, got {text!r}; write {_HOW}")
    return each


def _choices(braced: str) -> list[str]:
    """Returns the alternatives in braces: `q,k` or `0..3` or `0..6..2`, or several of them."""
    choices: list[str] = []
    for choice in braced.split(","):
        if match := _RANGE.fullmatch(choice):
            first, last, step = (int(number or 1) for number in match.groups())
            choices += map(str, range(first, last + 1, step))
        else:
            choices.append(choice)
    return choices
