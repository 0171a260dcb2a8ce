# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from dovetail_checkpoint import Retention, Store, load, rewind


def saved(root, steps):
    with Store(root, retention=Retention(latest=10)) as store:
        for step in steps:
            store.save(step, model={"w": jnp.full(3, step)})
    return root


def test_a_run_goes_on_from_an_earlier_step(tmp_path):
    root = saved(tmp_path / "run", (0, 10, 20, 30))
    aside = rewind(root, 10)
    assert [path.name for path in aside] == ["30.dovetail-rewound-0", "20.dovetail-rewound-0"]
    with Store(root) as store:
        assert store.restore(model={"w": jnp.zeros(3, int)})[0] == 10
        assert store.peek("model") == (10, None)
        store.save(20, model={"w": jnp.full(3, 21)})
    again = rewind(root, 10)
    assert [path.name for path in again] == ["20.dovetail-rewound-1"]
    for path, value in zip([*aside, *again], (30, 20, 21), strict=True):
        assert load(path, {"w": jnp.zeros(3, int)}, item="model")["w"].tolist() == [value] * 3


def test_rewinding_to_the_newest_step_changes_nothing(tmp_path):
    root = saved(tmp_path / "run", (1, 2))
    before = sorted(os.listdir(root))
    assert rewind(root, 2) == []
    assert sorted(os.listdir(root)) == before


@pytest.mark.thorough
def test_retention_leaves_what_was_set_aside(tmp_path):
    root = saved(tmp_path / "run", (1, 2, 3))
    aside = rewind(root, 1)
    with Store(root, retention=Retention(latest=1)) as store:
        for step in (2, 3, 4):
            store.save(step, model={"w": step})
    assert all(path.is_dir() for path in aside)
    assert [step.step for step in Store(root).steps()] == [4]


def test_what_cannot_be_rewound_is_refused_and_nothing_moves(tmp_path):
    root = saved(tmp_path / "run", (5, 6))
    with pytest.raises(ValueError, match=r"one that was saved, got step=4 .* \[5, 6\]; use the"):
        rewind(root, 4)
    with pytest.raises(ValueError, match=r"one that was saved, got step=1 .* has none; use"):
        rewind(tmp_path / "absent", 1)
    with pytest.raises(ValueError, match="step must be an int from 0 on, got step=-1"):
        rewind(root, -1)
    with ocp.CheckpointManager(root) as manager:
        manager.save(7, args=ocp.args.StandardSave({"w": jnp.ones(2)}))
    with pytest.raises(ValueError, match=r"those of a Store, got step=5 before steps \[7\].*move"):
        rewind(root, 5)
    assert {"5", "6", "7"} <= set(os.listdir(root))


def test_a_root_that_another_process_writes_to_is_not_rewound(tmp_path):
    root = saved(tmp_path / "run", (1, 2))
    program = """
        import sys
        from dovetail_checkpoint import Store
        store = Store(sys.argv[1])
        store.save(3, model={"w": 3})
        store.wait()
        print("saved", flush=True)
        sys.stdin.read()
    """
    line = [sys.executable, "-c", textwrap.dedent(program), root]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "saved\n"
            with pytest.raises(RuntimeError, match="process"):
                rewind(root, 1)
            assert {"1", "2", "3"} <= set(os.listdir(root))
        finally:
            other.kill()
    assert len(rewind(root, 1)) == 2  # the lock of a process that has ended is stale


@pytest.mark.thorough
@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_rewind_that_is_killed_leaves_a_run_and_is_done_by_the_next(tmp_path, renames):
    root = saved(tmp_path / "run", (1, 2, 3, 4))
    program = """
        import os, signal, sys
        from dovetail_checkpoint import rewind
        from dovetail_checkpoint.run import rewinding
        left, whole = int(sys.argv[2]), rewinding.set_aside
        def killed(*args, **options):
            global left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return whole(*args, **options)
        rewinding.set_aside = killed
        rewind(sys.argv[1], 1)
    """
    line = [sys.executable, "-c", textwrap.dedent(program), root, str(renames)]
    assert subprocess.run(line, check=False).returncode == -signal.SIGKILL
    target = {"w": jnp.zeros(3, int)}
    assert Store(root).restore(model=target)[0] == 4 - renames
    assert len(rewind(root, 1)) == 3 - renames
    assert Store(root).restore(model=target)[0] == 1
