# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_checkpoint import Store
from dovetail_checkpoint.proof import agree


def test_one_process_agrees_with_itself():
    assert agree.gather({"a": [1, None]}) == [{"a": [1, None]}]
    assert agree.is_primary()


def test_one_process_raises_its_own_error():
    agree.raise_together(None)
    error = OSError("no room")
    with pytest.raises(OSError, match="no room") as raised:
        agree.raise_together(error)
    assert raised.value is error


@pytest.mark.parametrize("ending", [lambda store: store, contextlib.closing])
def test_an_exception_on_its_way_waits_for_no_other_process(tmp_path, monkeypatch, ending):
    store = Store(tmp_path)

    def fail():
        store.save(1, item={"w": jnp.arange(3.0)})
        store._pending.done.result()  # Orbax counts processes, too
        # As if another process had not come to its own clean-up: a collective would fail here.
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        raise LookupError("its own words")

    with pytest.raises(LookupError, match="its own words"), ending(store):
        fail()
    monkeypatch.undo()
    store.close()
    assert [step.step for step in store.steps()] == [1]


def test_an_exception_that_is_handled_already_is_not_on_its_way(tmp_path, monkeypatch):
    store, asked = Store(tmp_path), []
    try:
        raise LookupError
    except LookupError:
        store.save(1, item={"w": jnp.arange(3.0)})
        store._pending.done.result()
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr(
            "dovetail_checkpoint.proof.agree._rows", lambda x: asked.append(x) or np.stack([x, x])
        )
        store.wait()
    assert len(asked) == 1


@pytest.mark.capability("saves of two processes")
@pytest.mark.slow
def test_two_processes_save_and_agree_and_other_numbers_restore(tmp_path, run_program):
    assert sorted(run_program("two_processes.py", tmp_path).splitlines()) == [
        "0 loaded, and then found l.0 and 1 file damaged",
        "0 of 1 restored 1 of [2, 1]",
        "0 of 1: an object whose state differs between processes must be restored by as many as "
        "saved it, got process_count=1 for 2 states; run 2 processes",
        "0 of 2 restored 1 of [1], row 7",
        "0 of 2 restored 1 of [2, 1], other steps are refused, row 10",
        "1 loaded, and then found l.0 and 1 file damaged",
        "1 of 2 restored 1 of [1], row 7",
        "1 of 2 restored 1 of [2, 1], other steps are refused, row 11",
    ]


@pytest.mark.thorough
def test_what_fails_on_one_process_is_an_error_of_all_at_once(tmp_path, run_program):
    assert sorted(run_program("divided.py", tmp_path).splitlines()) == [
        "0: restored 1; raised RuntimeError: every process must succeed, got process=1 with "
        "OSError('gone'); mend its cause and call again on every process; unwritable: "
        "NotADirectoryError; refused: RuntimeError, "
        "item/more: an array must lie on devices of all 2 processes",
        "1: restored 1; raised OSError: gone; unwritable: RuntimeError; refused: TypeError, "
        "item/more: an array must lie on devices of all 2 processes",
    ]
