# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Patterns of leaf names, in which rules are written.

    *    any characters inside one level: `layers/*/w`, `block_*/w`
    **   any number of whole levels, also none: `opt/**`, `**/bias`
    #    the digits of an index: `layers/#/w`

What the wildcards of one pattern matched fills those of another, in order: `model.layers.*.w` to
`blocks/*/w`. Dots are levels, as in `names.match_names`.
"""

import re
from dataclasses import dataclass
from functools import cached_property

_WILDCARD = re.compile(r"\*\*|\*|#")
_ONE_LEVEL = {"*": r"([^/]*)", "#": r"(0|[1-9][0-9]*)"}


@dataclass(frozen=True)
class Pattern:
    """A pattern of leaf names. Raises ValueError if `**` is not a whole level.

    >>> Pattern("layers/#/**").captures("layers/7/attn/w")
    ('7', 'attn/w')
    >>> Pattern("blocks_#/**").fill(("7", "attn/w"))
    'blocks_7/attn/w'
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(
                f"a pattern must be a string, got {type(self.text).__name__}; "
                'write "layers/*/kernel"'
            )
        wrong = [level for level in self.levels if "**" in level and level != "**"]
        if wrong:
            raise ValueError(
                f"** must be a whole level of a pattern, got {self.text!r}; write * inside a level"
            )

    def __str__(self) -> str:
        return self.text

    @property
    def levels(self) -> list[str]:
        """The pattern level by level."""
        return self.text.replace(".", "/").split("/")

    @cached_property
    def wildcards(self) -> tuple[str, ...]:
        """The wildcards in order."""
        return tuple(_WILDCARD.findall(self.text))

    def captures(self, name: str) -> tuple[str, ...] | None:
        """What each wildcard matched in `name`; None if the name does not match."""
        match = self._regex.fullmatch("/" + name)
        return None if match is None else tuple(text.removeprefix("/") for text in match.groups())

    def fill(self, captures: tuple[str, ...]) -> str:
        """The name with `captures` in place of the wildcards, one for each."""
        texts = iter(captures)
        levels = [_WILDCARD.sub(lambda _: next(texts), level) for level in self.levels]
        # A ** that matched nothing leaves no level.
        kept = [f for f, level in zip(levels, self.levels, strict=True) if f or level != "**"]
        return "/".join(kept)

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile("".join(map(_level_regex, self.levels)))


def _level_regex(level: str) -> str:
    """Each level brings the slash before it, so that ** may also match none."""
    if level == "**":
        return r"((?:/[^/]+)*)"
    literals = map(re.escape, _WILDCARD.split(level))
    wildcards = [_ONE_LEVEL[found] for found in _WILDCARD.findall(level)] + [""]
    return "/" + "".join(
        literal + wildcard for literal, wildcard in zip(literals, wildcards, strict=True)
    )
