# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A program in a fork of the server does what a process does."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forced_devices
import suite_times
import warm_start
import workspace

ENV = forced_devices.environment(1)
STRICT = ["-W", "error", "-c"]
WHOLE = """
import atexit, os, sys, threading, time, warnings
print(__name__, globals().get("__file__"), sys.argv, sys.path, os.getcwd(), sys.stdin.read())
print(os.environ["OWN"], "XLA_FLAGS" in os.environ, sys.modules["__main__"].__dict__ is globals())
print([entry[:3] for entry in warnings.filters if "numpy" not in str(entry)], hash("a"))
def annotated(x: int): "dont_inherit: the server's __future__ is not the program's"
print(annotated.__annotations__)
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
"""
ENDS = """raise SystemExit(259)
import sys; sys.exit('why')
print('before'); 1 / 0
import warnings; warnings.warn('text')
import os; print('lost'); os.kill(os.getpid(), 9)""".splitlines()


def both(line, env) -> subprocess.CompletedProcess[str]:
    """The result of a program in a fork, and that of a process is the same."""
    command, own = [sys.executable, *line], {"input": "", "capture_output": True, "text": True}
    process, fork = subprocess.run(command, env=env, **own), warm_start.run(line, env=env)
    assert (fork.stdout, fork.returncode) == (process.stdout, process.returncode)
    # Above the last line, a traceback has frames of warm_start.py.
    assert fork.stderr.splitlines()[-1:] == process.stderr.splitlines()[-1:]
    return fork


def test_a_program_has_the_state_of_a_process(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/program.py").write_text(WHOLE)
    monkeypatch.chdir(tmp_path)
    env = {"OWN": "1", "PYTHONPATH": "one:/two", "PYTHONHASHSEED": "7"}
    for line in ([*STRICT, WHOLE], ["-W", "error", "folder/program.py"]):
        assert both([*line, "a", "-c"], env).stdout.endswith("thread\nat exit\n")


@pytest.mark.parametrize("program", ENDS)
def test_a_program_ends_as_a_process(program):
    assert both([*STRICT, program], ENV).returncode


def test_variables_that_jax_and_xla_read_are_those_of_the_program():
    program = """if True:
        import os, jax, jax.numpy as jnp
        x, config = jnp.arange(3.0), jax.config
        print(len(jax.devices()), x.dtype, config.jax_enable_compilation_cache, float(x @ x))
        print(config.jax_numpy_rank_promotion, os.getppid())"""
    own = {"JAX_ENABLE_X64": "true", "JAX_NUMPY_RANK_PROMOTION": "raise"}
    environments = [forced_devices.environment(3), forced_devices.environment(5) | own]
    done = [warm_start.run([*STRICT, program], env=env).stdout.split() for env in environments]
    assert done[0][:-1] == ["3", "float32", "False", "5.0", "allow"]
    assert done[1][:-1] == ["5", "float64", "False", "5.0", "raise"]
    assert done[0][-1] == done[1][-1]  # one server


def test_cpu_seconds_of_a_program_count_and_a_warning_is_no_error_of_another_server():
    recorder = suite_times.Recorder()
    assert warm_start.run(["-c", "import warnings; warnings.warn('')"], env=ENV).returncode == 0
    before = recorder.cost()  # after the start of that server
    warm_start.run(["-c", "import time\nwhile time.process_time() < 0.3: pass"], env=ENV)
    assert recorder.cost().since(before).cpu_s > 0.3


def test_the_server_and_its_program_end_with_the_process_however_that_ends(tmp_path):
    program = """if True:
        import os, sys, time
        with open(f"/proc/{sys.argv[1]}/fd/1", "w") as pipe:
            pipe.write(f"{os.getppid()} {os.getpid()}")
        time.sleep(600)"""
    outer = f"import os, warm_start; warm_start.run(['-c', {program!r}, str(os.getpid())])"
    own = {"PYTHONPATH": str(workspace.ROOT / "scripts"), "TMPDIR": str(tmp_path)}
    line, pipe = [sys.executable, "-c", outer], subprocess.PIPE
    with subprocess.Popen(line, env=os.environ | own, stdout=pipe) as process:
        server, fork = process.stdout.read1().decode().split()
        process.kill()
    deadline_s = time.monotonic() + 30
    while Path("/proc", server).exists() or Path("/proc", fork).exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_server_that_dies_is_an_error_and_the_next_program_gets_another():
    with pytest.raises(RuntimeError, match=r"must live .* status=-9; start this program with"):
        warm_start.run([*STRICT, "import os; os.kill(os.getppid(), 9)"], env=ENV)
    assert warm_start.run([*STRICT, "print(2)"], env=ENV).stdout == "2\n"
