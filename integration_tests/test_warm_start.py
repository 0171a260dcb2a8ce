# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A program in a fork of the server does what a process does."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import forced_devices
import suite_times
import warm_start
import workspace

WHOLE = """
from __future__ import division
import atexit, os, sys, threading, time, warnings
print(__name__, globals().get("__file__"), sys.argv, sys.orig_argv, sys.path[:3], sys.warnoptions)
print(os.getcwd(), sys.stdin.read(), os.environ["OWN"], "PATH" in os.environ, __builtins__)
print([str(entry) for entry in warnings.filters if "numpy" not in str(entry)])
print(sys.modules["__main__"].__dict__ is globals(), sys.flags.hash_randomization, hash("a"))
class Late:
    def __del__(self): print("deleted", flush=True)
late = Late()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
"""
ENDS = {
    "number": "raise SystemExit(259)",
    "text": "import sys; sys.exit('why')",
    "error": "def f(x):\n    return 1 / x\ntry:\n    [][0]\nexcept LookupError as e:\n    f(0)",
    "syntax": "print(1",
    "own hook": "import sys\nsys.excepthook = lambda *error: print(error[:2])\n1 / 0",
    "warning": "import warnings\nwarnings.warn('text', UserWarning)",
    "killed": "import os\nprint('lost')\nos.kill(os.getpid(), 9)",
    "terminated": "import os\nos.kill(os.getpid(), 15)",
    "interrupted": "import os\nos.kill(os.getpid(), 2)",
    "os exit": "import os\nos._exit(3)",
}


def both(*line, **options) -> subprocess.CompletedProcess[str]:
    """The result of a program in a fork, which is that of a process."""
    command = [sys.executable, *line]
    own = {"input": "", **options}
    expected = subprocess.run(command, capture_output=True, text=True, check=False, **own)
    done = warm_start.run(line, **options)
    assert done.stdout == expected.stdout
    assert (done.stderr, done.returncode) == (expected.stderr, expected.returncode)
    return done


@pytest.mark.parametrize("filters", [(), ("-W", "error", "-W", "ignore:some:UserWarning")])
@pytest.mark.parametrize("kind", ["-c", "-m", "file"])
def test_a_program_has_the_state_of_a_process(tmp_path, kind, filters):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/program.py").write_text(WHOLE)
    line = {"-c": ["-c", WHOLE], "-m": ["-m", "folder.program"], "file": ["folder/program.py"]}
    own = {"OWN": "1", "PYTHONPATH": "one:/two", "PYTHONWARNINGS": "default::FutureWarning"}
    own |= {"PYTHONHASHSEED": "7"}  # a server of its own
    done = both(*filters, *line[kind], "a", "-c", env=own, cwd=tmp_path, input="given")
    assert done.stdout.endswith("thread\nat exit\ndeleted\n")


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_as_a_process(tmp_path, end):
    (tmp_path / "program.py").write_text(ENDS[end])
    assert both("-W", "error", tmp_path / "program.py").returncode
    assert both("-W", "error", "-c", ENDS[end]).returncode


def test_variables_that_jax_and_xla_read_are_those_of_the_program():
    program = """
        import jax, jax.numpy as jnp, numpy as np
        x = jnp.arange(3.0)
        print(len(jax.devices()), x.dtype, jax.config.jax_enable_compilation_cache)
        print(np.random.random())
    """
    line = ["-W", "error", "-c", textwrap.dedent(program)]
    lines = [
        warm_start.run(line, env={**forced_devices.environment(count), **own}).stdout.splitlines()
        for count, own in ((3, {}), (5, {"JAX_ENABLE_X64": "true"}))
    ]
    assert [first for first, _ in lines] == ["3 float32 False", "5 float64 False"]
    assert lines[0][1] != lines[1][1]
    bad = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_no_such_flag=1"}
    done = warm_start.run(line, env=bad)
    assert done.returncode != 0
    assert "xla_no_such_flag" in done.stderr


def test_cpu_seconds_of_a_program_count():
    recorder = suite_times.Recorder()
    warm_start.run(["-c", ""])
    before = recorder.cost()
    warm_start.run(["-c", "import time\nwhile time.process_time() < 0.3: pass"])
    assert recorder.cost().since(before).cpu_s > 0.3


def test_a_program_that_takes_too_long_is_killed():
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        warm_start.run(["-c", "import time\nprint(1, flush=True)\ntime.sleep(600)"], timeout=1)
    assert caught.value.stdout == "1\n"
    assert warm_start.run(["-c", "print(2)"]).stdout == "2\n"


def test_a_failure_raises_and_shows_the_errors(capsys):
    with pytest.raises(subprocess.CalledProcessError):
        warm_start.run(["-c", "raise SystemExit('why')"], check=True)
    assert "why" in capsys.readouterr().err


def test_the_server_and_its_program_end_with_the_process_however_that_ends():
    sleep = "import os, time; os.write(9, b'%d %d' % (os.getppid(), os.getpid())); time.sleep(600)"
    sleep = sleep.replace("os.write(9, ", "open('/proc/%s/fd/1' % OUTER, 'wb').write(")
    inner = f"import os, warm_start; warm_start.run(['-c', f'OUTER={{os.getpid()}}; ' {sleep!r}])"
    own = {**os.environ, "PYTHONPATH": str(workspace.ROOT / "scripts")}
    command = [sys.executable, "-c", inner]
    with subprocess.Popen(command, env=own, stdout=subprocess.PIPE) as outer:
        pids = outer.stdout.read1().split()
        outer.kill()
    deadline_s = time.monotonic() + 30
    while any(Path(f"/proc/{pid.decode()}").exists() for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_options_of_a_real_process_are_refused():
    with pytest.raises(ValueError, match=r"takes -W FILTER.*got \['-I', '-c', ''\].*subprocess"):
        warm_start.run(["-I", "-c", ""])


def test_a_process_is_started_where_the_switch_says_so(monkeypatch):
    monkeypatch.setenv(warm_start.SWITCH, "0")
    done = warm_start.run(["-c", "import os; print(os.getppid())"])
    assert done.stdout == f"{os.getpid()}\n"
