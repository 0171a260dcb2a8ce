# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of batching are checked when they are made."""

import dataclasses
import math

import pytest

from dovetail_serve.serving.options import Batching, check_port


@pytest.mark.parametrize(
    ("name", "value", "holds", "advice"),
    [
        ("max_batch", 0, "1 or more", "max_batch=1 to turn batching off"),
        ("max_batch", 65537, "at most 65536", "leave it out"),
        ("queue", -3, "1 or more", "queue=256"),
        ("priorities", 0, "1 or more", "priorities=2"),
        ("max_delay_ms", -0.5, "finite and 0 or more", "max_delay_ms=0.0"),
        ("max_delay_ms", math.nan, "finite and 0 or more", "max_delay_ms=0.0"),
        ("max_delay_ms", math.inf, "finite and 0 or more", "max_delay_ms=0.0"),
        ("timeout_ms", 0.0, "finite and above 0", "timeout_ms=None"),
        ("timeout_ms", math.inf, "finite and above 0", "timeout_ms=None"),
        ("padding", "pow2", '"min_cost" or "next"', 'padding="min_cost"'),
    ],
)
def test_values_out_of_range_are_refused(name, value, holds, advice):
    unchecked = _unchecked(name, value)
    with pytest.raises(ValueError, match="must be") as error:
        Batching.__post_init__(unchecked)
    message = str(error.value)
    assert holds in message
    assert f"{name}={value!r}" in message
    assert advice in message


@pytest.mark.parametrize(
    ("name", "value", "holds", "advice"),
    [
        ("max_batch", 8.0, "an integer", "max_batch=1"),
        ("queue", True, "an integer", "queue=256"),
        ("priorities", "2", "an integer", "priorities=2"),
        ("max_delay_ms", "5", "milliseconds", "max_delay_ms=0.0"),
        ("timeout_ms", True, "milliseconds", "timeout_ms=None"),
        ("split", 1, "True or False", "split=True"),
    ],
)
def test_values_of_other_types_are_refused(name, value, holds, advice):
    unchecked = _unchecked(name, value)
    with pytest.raises(TypeError) as error:
        Batching.__post_init__(unchecked)
    message = str(error.value)
    assert holds in message
    assert f"{name}={value!r}" in message
    assert advice in message


def test_the_ends_of_the_ranges_are_taken():
    options = Batching(
        max_batch=1, max_delay_ms=0.0, queue=1, timeout_ms=0.001, split=False, priorities=1
    )
    assert dataclasses.astuple(options) == (1, 0.0, "min_cost", 1, 0.001, False, 1)


def _unchecked(name: str, value: object) -> Batching:
    """Returns options that were not checked: beartype would refuse other types before us."""
    options = Batching()
    object.__setattr__(options, name, value)
    return options


@pytest.mark.parametrize("port", [-1, 65536, 70000])
def test_ports_that_no_socket_has_are_refused(port):
    with pytest.raises(ValueError, match="must be a port from 0 to 65535") as error:
        check_port("grpc", port)
    assert f"got grpc={port}; write grpc=0" in str(error.value)
    for least_or_most in (0, 65535):
        check_port("grpc", least_or_most)
