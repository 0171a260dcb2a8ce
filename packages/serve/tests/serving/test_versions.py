# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import hypothesis
import pytest
from hypothesis import strategies as st

from dovetail_serve.serving.versions import check_models, parse_policy, version_of

VERSIONS = st.sets(st.integers(1, 10**18 - 1), max_size=8)


@pytest.mark.thorough
@hypothesis.given(available=VERSIONS, count=st.integers(1, 5))
def test_latest_wants_the_largest_versions(available, count):
    wanted = parse_policy(f"latest:{count}", None).wanted("m", available)
    assert list(wanted) == sorted(wanted)
    assert set(wanted) <= available
    assert len(wanted) == min(count, len(available))
    assert all(left < min(wanted) for left in available - set(wanted))


@pytest.mark.thorough
@hypothesis.given(available=VERSIONS)
def test_all_wants_every_version(available):
    assert parse_policy("all", None).wanted("m", available) == tuple(sorted(available))


def test_a_mapping_wants_its_versions_even_if_they_are_missing():
    policy = parse_policy({"m": (3, 1)}, None)
    assert policy.wanted("m", {1, 2}) == (1, 3)
    assert policy.wanted("other", {1, 2}) == ()


def test_labelled_versions_are_wanted_beside_the_others():
    policy = parse_policy("latest:1", {"m": {"stable": 3, "old": 2}})
    assert policy.wanted("m", {1, 2, 3, 4}) == (2, 3, 4)
    assert policy.wanted("other", {1, 2}) == (2,)


@pytest.mark.parametrize(
    "name, version",
    [("1", 1), ("10", 10), ("9" * 18, 10**18 - 1)]
    + [(name, None) for name in ("0", "01", "-1", "1.0", "", "v1", "1 ", "٣", "9" * 19, "1\n")],
)
def test_a_version_is_an_integer_from_1_without_leading_zeros(name, version):
    assert version_of(name) == version


@pytest.mark.parametrize(
    "text, instead",
    [
        ("latest", "latest:1"),
        ("lates:3", "latest:3"),
        ("al", "all"),
        ("latest:0", "latest:1"),
        ("latest:02", "latest:2"),
        ("latest:-1", "latest:1"),
        ("", "all"),
    ],
)
def test_another_text_is_refused_with_the_nearest(text, instead):
    with pytest.raises(ValueError, match="'all', 'latest:N'") as error:
        parse_policy(text, None)
    assert f"got versions={text!r}" in str(error.value)
    assert repr(instead) in str(error.value).rpartition("write ")[2]


@pytest.mark.parametrize(
    "arguments, rule, came, instead",
    [
        (({"m": (0,)}, None), "versions must give versions from 1", "got 0", "write 1"),
        (({"m": (True,)}, None), "versions as integers", "got True", "such as 3"),
        (({"m": ()}, None), "must not be empty", "{'m': ()}", "{'m': (1,)}"),
        (("all", {"m": {"3": 1}}), "a label must differ from", "got '3' for 'm'", "'stable'"),
        (("all", {"m": {"a/b": 1}}), "must have letters", "got 'a/b'", "write a name"),
        (("all", {"m": {"a": -1}}), "labels must give versions from 1", "got -1", "write 1"),
    ],
)
def test_wrong_versions_and_labels_are_refused(arguments, rule, came, instead):
    with pytest.raises((TypeError, ValueError)) as error:
        parse_policy(*arguments)
    for part in (rule, came, instead):
        assert part in str(error.value)


def test_a_model_that_the_repository_lacks_is_refused_with_near_names():
    check_models("labels", ["mlp"], ["mlp", "vit"])
    with pytest.raises(ValueError, match="labels must name models of the repository") as error:
        check_models("labels", ["mpl"], ["mlp", "vit"])
    assert "got 'mpl'; write 'mlp'" in str(error.value)
    with pytest.raises(ValueError, match="write the name of a directory"):
        check_models("labels", ["mlp"], [])


@pytest.mark.parametrize(
    "versions, text",
    [("all", "'all'"), ("latest:2", "'latest:2'"), ({"m": [2, 1]}, "{'m': (2, 1)}")],
)
def test_a_policy_prints_as_the_option(versions, text):
    assert str(parse_policy(versions, None)) == text
