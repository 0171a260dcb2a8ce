# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The way from a command line to the first training step stays short."""

import pytest

import walk

pytestmark = [pytest.mark.thorough, pytest.mark.once]

FILES, HOPS = 97, 6


@pytest.fixture(scope="module")
def measured():
    return walk.walk(walk.ROOT)


def test_the_way_is_short(measured):
    """A file more is a file more that each reader opens: put it off the way, or join two."""
    assert measured["files_entered"] <= FILES, "\n".join(measured["entered"])
    assert measured["hops"] <= HOPS, "\n".join(measured["stack"])


def test_it_leads_from_the_command_to_the_trainer(measured):
    first, last = measured["stack"][0], measured["stack"][-1]
    assert first == "packages/stack/src/dovetail_stack/cli.py:main"
    assert last.startswith("packages/train/src/dovetail_train/")
    assert "packages/optim/src/dovetail_optim/muon.py" in measured["entered"]


def test_calls_of_an_import_and_second_copies_do_not_count(measured):
    entered = measured["entered"]
    # Its table calls `Family` while it is imported; no run of a Llama needs it.
    assert "packages/models/src/dovetail_models/families/qwen2.py" not in entered
    assert "packages/models/src/dovetail_models/hf/table.py" not in entered
    assert len({walk.ROOT.joinpath(file).read_bytes() for file in entered}) == len(entered)
    assert sum(file.endswith("/_patterns.py") for file in entered) == 1
