# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rules as options of a command, in the order typed.

`keep_init` is missing: a command has no model with values to keep.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from dovetail_checkpoint.layout import rules
from dovetail_checkpoint.layout.rules import Rule


def add_rule_options(parser: argparse.ArgumentParser) -> None:
    """Declares an option for each rule; the parsed result is a list, `rules`."""
    group = parser.add_argument_group(
        "rules",
        "Rules apply in the order given. P and Q are patterns of leaf names; quote them:\n"
        "* is any part of a segment, ** any number of segments, # an index, {a,b} a choice.",
    )
    for option, metavar, make, summary in _OPTIONS:
        group.add_argument(
            f"--{option}",
            action=_Append,
            make=make,
            nargs=len(metavar),
            metavar=metavar,
            dest="rules",
            default=(),
            help=summary,
        )


class _Append(argparse.Action):
    """Adds the rule made from the option's values; a refusal is a usage error."""

    def __init__(self, *, make: Callable[..., Rule], **options: Any) -> None:
        super().__init__(**options)
        self._make = make

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        try:
            rule = self._make(*(values or ()))
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentError(self, str(error)) from error
        namespace.rules = [*namespace.rules, rule]


def _stack(pattern: str, to: str, axis: str) -> Rule:
    return rules.stack(pattern, to, axis=_integer(axis))


def _unstack(pattern: str, to: str, axis: str) -> Rule:
    return rules.unstack(pattern, to, axis=_integer(axis))


def _split(pattern: str, parts: str, axis: str) -> Rule:
    pairs = [entry.partition("=") for entry in parts.split(",")]
    sizes = [_integer(size) for _, equals, size in pairs if equals]
    return rules.split(pattern, [to for to, _, _ in pairs], axis=_integer(axis), sizes=sizes)


def _fuse(patterns: str, to: str, axis: str) -> Rule:
    return rules.fuse(patterns.split(","), to, axis=_integer(axis))


def _transpose(pattern: str, axes: str) -> Rule:
    return rules.transpose(pattern, [_integer(axis) for axis in axes.split(",")])


def _drop(patterns: str) -> Rule:
    return rules.drop(*patterns.split(","))


def _only(patterns: str) -> Rule:
    return rules.only(*patterns.split(","))


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"axes and sizes must be integers, got {text!r}; write 0 or -1") from None


# Option, what follows it, the rule of these texts, help.
_OPTIONS = (
    ("rename", ("P", "Q"), rules.rename, "give leaves another name"),
    ("stack", ("P", "Q", "AXIS"), _stack, "stack leaves along a new axis: P has one #, Q none"),
    ("unstack", ("P", "Q", "AXIS"), _unstack, "cut leaves along an axis into several: Q has one #"),
    (
        "split",
        ("P", "Q,Q,..", "AXIS"),
        _split,
        "cut leaves into equal parts; Q=SIZE,Q=SIZE for unequal",
    ),
    ("fuse", ("P,P,..", "Q", "AXIS"), _fuse, "concatenate leaves along an axis"),
    ("transpose", ("P", "AXES"), _transpose, "reorder the axes of leaves, as in 1,0"),
    ("cast", ("P", "DTYPE"), rules.cast, "convert leaves, as to bfloat16"),
    ("drop", ("P,..",), _drop, "leave these leaves out"),
    ("only", ("P,..",), _only, "leave all other leaves out"),
)
