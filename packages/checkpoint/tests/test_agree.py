# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_checkpoint import agree


def test_one_process_agrees_with_itself():
    assert agree.gather({"a": [1, None]}) == [{"a": [1, None]}]
    assert agree.is_primary()


@pytest.mark.slow
def test_two_processes_save_agree_on_damage_and_on_a_signal(tmp_path, run_program):
    assert run_program("two_processes.py", tmp_path).splitlines() == [
        "0 restored 1 after a damaged 2, row 10",
        "1 restored 1 after a damaged 2, row 11",
    ]
