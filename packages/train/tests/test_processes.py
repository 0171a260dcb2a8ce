# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Real processes over jax.distributed, two devices each."""

import json
import logging
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

import forced_devices
from dovetail_train import (
    Console,
    check_shared,
    gather_module,
    initialize_distributed,
    make_mesh,
    on_first,
    process_shard,
    watch_processes,
)
from dovetail_train.loop.clock import Clock
from dovetail_train.loop.progress import Progress
from dovetail_train.mesh.processes import Compared, first, gather, receiving
from dovetail_train.step.guard import Skipped

PROGRAMS = Path(__file__).parent / "programs"


def _train(count, *directory, program="processes.py"):
    """Returns the JSON of process 0."""
    with socket.socket() as held:
        # Nobody else gets the port meanwhile; the coordinator may, since it sets the option too.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
        running = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(PROGRAMS / program),
                    str(me),
                    str(count),
                    port,
                    *map(str, directory),
                ],
                env=forced_devices.environment(2 if count > 1 else 1),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for me in range(count)
        ]
        results = [process.communicate(timeout=600) for process in running]
    for process, (_, errors) in zip(running, results, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return json.loads(results[0][0].splitlines()[-1])  # after what Gloo prints


@pytest.mark.capability("training on several processes")
@pytest.mark.slow  # as do those that resume on other numbers of processes, below
def test_two_processes_with_their_own_rows_train_as_one_does():
    one, two = _train(1), _train(2)
    assert len(one) == 4
    # Sums over 4 devices are in another order.
    np.testing.assert_allclose(two, one, rtol=2e-5)


@pytest.mark.slow
def test_two_processes_resume_from_one_store(tmp_path):
    one, two = _train(1, tmp_path / "one"), _train(2, tmp_path / "two")
    assert len(one) == 6
    np.testing.assert_allclose(two, one, rtol=2e-5)


@pytest.mark.thorough
def test_a_hook_of_one_process_ends_the_run_of_all_at_the_same_step():
    assert _train(2, program="hooks.py") == [[5, False], [3, True], [5, False]]


@pytest.mark.thorough
def test_pairs_are_not_torn_by_microbatches_devices_or_processes(on_eight_devices):
    losses = on_eight_devices("pairs.py") | _train(2, program="pairs.py")
    whole = losses.pop("one/1")
    assert whole[-1] < whole[0]
    assert sorted(losses) == ["both", "data", "one/4", "processes"]
    for name, split in losses.items():
        np.testing.assert_allclose(split, whole, rtol=2e-5, err_msg=name)


def _launches(program, *arguments, timeout_s=600):
    """Returns the JSON of a program that starts processes of its own."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.thorough("several processes")
@pytest.mark.capability("a run resumes on other numbers of processes")
def test_a_run_of_two_processes_resumes_on_one_and_on_four(tmp_path):
    result = _launches("resized.py", tmp_path)
    assert sorted(result["whole"]) == sorted(result["moved"])
    for step, loss in result["whole"].items():
        # Four devices in each launch; sums over processes are in another order.
        np.testing.assert_allclose(result["moved"][step], loss, rtol=1e-6, err_msg=step)
    assert result["logged"] == list(range(8))  # each step once
    assert result["evaluated"] == [2, 4, 6, 8]
    assert result["everywhere"] == ["5", "6", "7"]  # a sink of process 3
    # Each launch continues the account that the one before saved, and counts its own time once.
    # What a launch spends after it took the account for its last save is in no later account.
    restored = np.array([0.0, *result["saved"][:-1]])
    assert (restored < result["saved"]).all()
    assert (result["saved"] <= np.array(result["seconds"])).all()
    assert (result["seconds"] < restored + result["launch_s"]).all()


@pytest.mark.slow
def test_every_kind_of_state_moves_between_one_process_and_two_bit_for_bit(tmp_path):
    result = _launches("kinds.py", tmp_path)
    assert result["moved"] == result["whole"]
    assert {"guard.key", "opt.0.rng_key", "rest.dropout.rngs.key", "rest.keys"} < set(
        result["whole"]
    )


@pytest.mark.capability("a lost process ends the others, and the run resumes")
@pytest.mark.slow
def test_survivors_of_a_killed_process_raise_and_the_run_resumes(tmp_path):
    result = _launches("survivors.py", tmp_path, 3, 1)
    for losses in result["killed"]:
        assert losses == result["whole"]  # the same processes: bit for bit
    for trial in result["trials"]:
        if trial["victim"] == 0 or trial["survivors"] == [0]:  # the run had ended before
            continue
        assert trial["victim"] == -9
        assert trial["survivors"] == [1], trial  # an exception, not a C++ abort
        assert "all 2 processes of a run must stay until its end, got a lost" in trial["said"]
        assert "start all processes again with the same arguments" in trial["said"]


@pytest.mark.thorough
@pytest.mark.parametrize("slow", [1, -1])
def test_a_process_that_is_slow_inside_of_steps_is_named_and_no_other_is(tmp_path, slow):
    result = _launches("throttled.py", tmp_path, slow)
    assert result["accounts"][:2] == [1, 2]  # also between the hooks of every fifth step
    if slow < 0:
        assert result["straggler"] == {}
        assert "is slower than the others" not in result["log"]
        return
    straggler = result["straggler"]
    assert straggler["straggler"] == slow
    assert straggler["straggler/devices"] >= 2 * straggler["straggler/others"] > 0
    assert f"process {slow} is slower than the others" in result["log"]
    assert "s of its devices since the start" in result["log"]


@pytest.mark.thorough
def test_processes_that_pass_the_same_rows_are_warned(tmp_path):
    result = _launches("same_rows.py", tmp_path)
    assert "identical rows in processes [0, 1]" in result["same"]
    assert "each process must pass its own rows" in result["same"]
    assert "write batches(..., shard=process_shard(mesh))" in result["same"]
    assert result["own"] == result["tensor"] == ""
    assert result["shards"] == [[0, 2], [1, 2]]
    assert result["tensor_shards"] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    "given, rule, came, instead",
    [
        (
            {"coordinator": "h:1", "processes": 2},
            "must be given together",
            "coordinator='h:1', processes=2, process=None",
            "or none of them on a cluster",
        ),
        ({"processes": 2}, "must be given together", "processes=2", "write initialize"),
        (
            {"coordinator": "localhost", "processes": 2, "process": 0},
            "must be HOST:PORT",
            "coordinator='localhost'",
            'write initialize_distributed("10.0.0.1:9911"',
        ),
        (
            {"coordinator": "h:70000", "processes": 2, "process": 0},
            "must be HOST:PORT",
            "coordinator='h:70000'",
            "write initialize",
        ),
        (
            {"coordinator": "h:1", "processes": 2, "process": 2},
            "process must be from 0 to processes - 1",
            "processes=2, process=2",
            "and process=1 in the second one",
        ),
        ({"heartbeat_s": 0}, "at least 1 second", "heartbeat_s=0", "write heartbeat_s=10"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_joined(given, rule, came, instead):
    with pytest.raises(ValueError, match=rule) as refused:
        initialize_distributed(given.pop("coordinator", None), **given)
    for words in (came, instead):
        assert words in str(refused.value)
    assert not jax.distributed.is_initialized()


def test_a_process_that_has_used_jax_is_not_joined():
    jax.devices()
    with pytest.raises(RuntimeError) as refused:
        initialize_distributed("127.0.0.1:9911", processes=1, process=0)
    assert "must be joined before it uses JAX, got a call after it" in str(refused.value)
    assert "call initialize_distributed first" in str(refused.value)


@pytest.mark.thorough
def test_without_a_cluster_the_message_says_what_to_type():
    program = (
        "from dovetail_train import initialize_distributed as join\n"
        "try: join()\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert "must be started by a cluster that JAX detects" in done.stdout
    assert "got none (" in done.stdout
    assert "write initialize_distributed(" in done.stdout


def test_one_process_agrees_with_itself_and_writes_to_every_sink():
    assert gather({"a": 1}) == [{"a": 1}]
    assert first([1.5]) == [1.5]
    sinks = [Console(every=5), Console(every=7)]
    assert receiving(sinks) == sinks
    with watch_processes():
        pass
    with pytest.raises(KeyError), watch_processes():
        raise KeyError("own")
    assert process_shard(make_mesh()) == (0, 1)
    progress = Progress(Clock(), [], Skipped())
    assert progress.agree({"loss": 1.0}) == {"loss": 1.0}


def test_one_process_works_alone(tmp_path):
    module, error = nnx.Linear(2, 1, rngs=nnx.Rngs(0)), KeyError("own")
    assert on_first(lambda: [1, "a"]) == [1, "a"]
    assert gather_module(module) is module
    check_shared(tmp_path / "absent")

    def fails():
        raise error

    with pytest.raises(KeyError) as raised:
        on_first(fails)
    assert raised.value is error


@pytest.mark.thorough
def test_process_0_works_while_the_other_waits(tmp_path):
    first_one, other = _launches("firsts.py", tmp_path)
    assert first_one["result"] == other["result"] == {"of": 0}
    assert first_one["failed"] == ["ValueError", "no text\nlook below", 3]
    assert other["failed"] == ["_FirstError", "process 0 failed: no text\nlook below", 3]
    for process in (first_one, other):
        assert process["shared"] == ""
        assert "all processes must share a directory, got" in process["apart"]
        assert "without the file of process 0 in processes [1]: take a" in process["apart"]
    assert first_one["whole"] == np.arange(8.0).tolist()
    assert other["whole"] is None
    assert first_one["draw"] == float(jax.random.uniform(jax.random.key(7)))


def test_batches_of_one_process_are_placed_and_not_compared(caplog):
    with caplog.at_level(logging.WARNING):
        place = Compared(lambda batch: {**batch, "placed": True}, make_mesh())
        assert place({"x": np.ones(3)})["placed"]
    assert not caplog.records


@pytest.mark.parametrize(
    "kind, said, lost",
    [
        (ValueError, "UNKNOWN: Gloo all-reduce failed: Connection closed by peer", True),
        (jax.errors.JaxRuntimeError, "UNAVAILABLE: a task is gone", True),
        (jax.errors.JaxRuntimeError, "RESOURCE_EXHAUSTED: out of memory", False),
        (ValueError, "a connection of the user's own", False),
    ],
)
def test_a_broken_collective_is_told_as_a_lost_process(monkeypatch, kind, said, lost):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    expected = RuntimeError if lost else kind
    match = "got a lost process" if lost else said
    with pytest.raises(expected, match=match), watch_processes():
        raise kind(said)
