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
message gives the glob to write.

This file is kept verbatim in several packages, since no package imports another. Edit it in
scripts/shared, then run scripts/copies.py.
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

_EXAMPLE = "'layers.*.attn.{q,k}.kernel'"
_REGEX_CHARACTERS = r"\()|[]^$+?"
WILDCARD = re.compile(r"\*\*|\*|#")
_ONE_SEGMENT = {"*": r"([^.]*)", "#": r"(0|[1-9][0-9]*)"}
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

    @property
    def wildcards(self) -> tuple[str, ...]:
        """Returns the wildcards in order. Raises ValueError if the alternatives differ in them."""
        each = {tuple(WILDCARD.findall(text)) for text in _alternatives(self.text)}
        if len(each) > 1:
            raise ValueError(
                f"the alternatives of this pattern must have the same wildcards, got {self.text!r};"
                " write a pattern for each"
            )
        return each.pop()

    def captures(self, name: str) -> tuple[str, ...] | None:
        """Returns the text matched by each wildcard, or None if the name does not match."""
        segments = f".{name}" if name else ""
        for regex in _regexes(self.text):
            if match := regex.fullmatch(segments):
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
    keys = list(path)
    if keys and isinstance(keys[-1], jax.tree_util.GetAttrKey) and keys[-1].name == "value":
        keys.pop()
    return ".".join(_key(key) for key in keys).replace("/", ".")


def _key(key: Any) -> str:
    """Returns a dict key, a field name or an index as text."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def names_of(tree: Any) -> list[str]:
    """Returns the name of each leaf of `tree`, in the order of `jax.tree.leaves`."""
    return [name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def each_of(patterns: Patterns) -> tuple[Pattern, ...]:
    """Parses one string or a sequence of strings. Raises ValueError for an empty sequence."""
    texts = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    if not texts:
        raise ValueError("there must be a pattern, got none; write '**' for everything")
    return tuple(Pattern(text) for text in texts)


def matches(patterns: Patterns, name: str) -> bool:
    """Tests whether any of the patterns matches the name."""
    return any(pattern.matches(name) for pattern in each_of(patterns))


def select(patterns: Patterns, names: Iterable[str], *, what: str = "parameter") -> list[str]:
    """Returns the names matched by at least one pattern, in the order of `names`.

    Args:
        patterns: A pattern or several.
        names: The names to choose from.
        what: The kind of thing with these names, for the error message.

    Raises:
        ValueError: A pattern matches no name. The message gives the nearest names.
    """
    names = list(names)
    each = each_of(patterns)
    for pattern in each:
        if not any(pattern.matches(name) for name in names):
            raise ValueError(
                f"a pattern must match a {what}, got {pattern.text!r}, {no_match(pattern, names)}"
            )
    return [name for name in names if any(pattern.matches(name) for pattern in each)]


def no_match(pattern: Pattern | str, names: Iterable[str]) -> str:
    """Returns the end of a message about an unmatched pattern, with a pattern to write instead."""
    names, text = list(names), str(pattern)
    reason = f"which matches none of {len(names)} names"
    for wider in _wider(text):
        count = sum(Pattern(wider).matches(name) for name in names)
        if count:
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


def _wider(text: str) -> list[str]:
    """Returns patterns with more segments, one of them perhaps the intended one."""
    text = text.replace("/", ".")
    deep = ".".join("**" if s == "*" else s for s in _segments(text))
    wider = [deep, f"{deep}.**", f"**.{deep}", f"**.{deep}.**"]
    return [each for each in wider if text and each != text and "**.**" not in each]


@functools.lru_cache(maxsize=4096)
def _regexes(text: str) -> tuple[re.Pattern[str], ...]:
    """Returns a regular expression for each alternative, over names with a leading dot."""
    return tuple(
        re.compile("".join(map(_segment_regex, alternative.split("."))))
        for alternative in _alternatives(text)
    )


def _segment_regex(segment: str) -> str:
    """Returns the expression of a segment with the dot before it, so `**` can match nothing."""
    if not segment:  # of the empty pattern
        return ""
    if segment == "**":
        return r"((?:\.[^.]+)*)"
    if segment == "*":
        return r"\.([^.]+)"
    literals = map(re.escape, WILDCARD.split(segment))
    wildcards = [_ONE_SEGMENT[wildcard] for wildcard in WILDCARD.findall(segment)] + [""]
    return r"\." + "".join(itertools.chain(*zip(literals, wildcards, strict=True)))


@functools.lru_cache(maxsize=4096)
def _alternatives(text: str) -> tuple[str, ...]:
    """Returns the pattern for each choice of its braces. Raises as `Pattern` does."""
    if not isinstance(text, str):
        raise TypeError(f"a pattern must be a string, got {text!r}; write one like {_EXAMPLE}")
    alternatives, rule = _parsed(text)
    if rule:
        raise ValueError(f"{rule}, got {text!r}; write {_glob(text)}")
    return alternatives


def _parsed(text: str) -> tuple[tuple[str, ...], str]:
    """Returns the alternatives of a pattern and the broken rule, or ''."""
    if set(text) & set(_REGEX_CHARACTERS) or text == ".*":
        return (), "a pattern is a glob, not a regular expression"
    # Texts in braces come at odd indices.
    pieces = re.split(r"\{([^{}]*)\}", text.replace("/", "."))
    if any(set(piece) & set("{}") for piece in pieces):
        return (), "braces must be closed and not nested"
    choices = [_choices(piece) if i % 2 else (piece,) for i, piece in enumerate(pieces)]
    alternatives = tuple("".join(choice) for choice in itertools.product(*choices))
    segments = {segment for alternative in alternatives for segment in alternative.split(".")}
    if text and "" in segments:
        return (), "a pattern must have segments between single dots"
    if any("**" in segment and segment != "**" for segment in segments):
        return (), "** must be a whole segment of a pattern (inside a segment it is *)"
    return alternatives, ""


def _choices(braced: str) -> tuple[str, ...]:
    """Returns the alternatives in braces: `q,k` or `0..3` or `0..6..2`, or several of them."""
    choices: list[str] = []
    for choice in braced.split(","):
        if match := _RANGE.fullmatch(choice):
            first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
            choices += map(str, range(first, last + 1, step))
        else:
            choices.append(choice)
    return tuple(choices)


def _segments(text: str) -> list[str]:
    """Splits a pattern at its dots, except inside braces."""
    return re.findall(r"(?:\{[^{}]*\}|[^.{}])+", text)


def _glob(text: str) -> str:
    """Returns the glob closest to `text`, quoted, or an example.

    In a regular expression, a lone `.*` becomes any number of segments; beside other characters
    it becomes any characters of one segment.
    """
    dot, some = "\0", "\1"
    text = text.replace(r"\.", dot).removeprefix("^").removesuffix("$")
    text = re.sub(r"\\d[+*]?|\[0-9\][+*]?", "#", text)
    text = re.sub(r"\[\^[./]\][+*]", "*", text)
    text = re.sub(r"\.[*+]\??", some, text)
    text = re.sub(r"\((?:\?:)?([^()]*)\)", r"{\1}", text)
    text = f"{{{text}}}" if "|" in re.sub(r"\{[^{}]*\}", "", text) else text
    segments = []
    for segment in text.replace("|", ",").replace(dot, ".").split("."):
        # At an end of a segment, any characters may be whole segments too.
        alone = not segment.strip(some)
        segments += ["**"] if segment.startswith(some) else []
        segments += [] if alone else [segment]
        segments += ["**"] if segment.endswith(some) and not alone else []
    glob = ".".join(segments).replace(some, "*")
    return repr(glob) if glob and not _parsed(glob)[1] else f"one like {_EXAMPLE}"
