# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Each option makes the rule of the same name: told apart by how rules print themselves."""

import argparse

import pytest

from dovetail_checkpoint import cast, drop, fuse, only, rename, split, stack, transpose, unstack
from dovetail_checkpoint.layout.rule_options import add_rule_options


def parsed(*argv):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_rule_options(parser)
    parser.add_argument("path", nargs="?")
    return parser.parse_args(argv)


CASES = [
    (("--rename", "a.*", "b.*"), rename("a.*", "b.*")),
    (("--stack", "l.#.**", "l.**", "1"), stack("l.#.**", "l.**", axis=1)),
    (("--unstack", "l.**", "l.#.**", "-1"), unstack("l.**", "l.#.**", axis=-1)),
    (("--split", "**.qkv", "**.q,**.k", "-1"), split("**.qkv", ["**.q", "**.k"], axis=-1)),
    (
        ("--split", "**.qkv", "**.q=8,**.k=2,**.v=2", "0"),
        split("**.qkv", ["**.q", "**.k", "**.v"], axis=0, sizes=(8, 2, 2)),
    ),
    (("--fuse", "**.q,**.k", "**.qk", "0"), fuse(["**.q", "**.k"], "**.qk", axis=0)),
    (("--transpose", "**.w", "1,0"), transpose("**.w", (1, 0))),
    (("--cast", "**", "bfloat16"), cast("**", "bfloat16")),
    (("--drop", "opt.**,step"), drop("opt.**", "step")),
    (("--only", "a,b.*"), only("a", "b.*")),
]


@pytest.mark.parametrize("argv, rule", CASES, ids=str)
def test_an_option_is_the_rule_of_its_name(argv, rule):
    assert [str(made) for made in parsed(*argv).rules] == [str(rule)]


def test_rules_keep_the_order_in_which_they_were_typed():
    argv = ["--drop", "a", "--rename", "b", "c", "run", "--drop", "c"]
    assert list(map(str, parsed(*argv).rules)) == ["drop('a')", "rename('b', 'c')", "drop('c')"]


def test_no_option_is_no_rule_and_lines_share_nothing():
    assert len(parsed("--drop", "a").rules) == 1
    assert parsed().rules == ()


@pytest.mark.parametrize(
    "argv, message",
    [
        (("--rename", "a.*", "b"), "argument --rename: both sides must have the same wildcards"),
        (("--stack", "l.#.**", "l.**", "x"), "must be integers, got 'x'; write 0 or -1"),
        (("--split", "a", "b=1,c", "0"), "one size for each part"),
        (("--split", "a", "b", "0"), "two patterns or more"),
        (("--transpose", "a", "1;0"), "must be integers, got '1;0'"),
        (("--cast", "a", "float33"), "argument --cast: .*float33"),
        (("--drop", "a**"), "argument --drop: .* must be a whole segment"),
        (("--stack", "l.#", "l"), "expected 3 arguments"),
    ],
)
def test_what_is_no_rule_is_an_error_of_usage(argv, message):
    with pytest.raises(argparse.ArgumentError, match=message):
        parsed(*argv)
