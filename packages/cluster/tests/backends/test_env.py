# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts from the environment: scripts in processes of their own, which start in any order."""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from dovetail_cluster import wire
from dovetail_cluster.backends import base
from dovetail_cluster.backends.env import Env
from dovetail_cluster.backends.follow import Begin, End, Ended, Follows
from dovetail_cluster.errors import JobError, RankError

KEY = "ab" * 32


@pytest.fixture
def variables(monkeypatch, free_port):
    """The environment of host 0 of two. If the other never comes, host 0 waits briefly for it."""
    monkeypatch.setattr("dovetail_cluster.backends.env._LINGER_S", 0.1)
    values = {
        "DOVETAIL_CLUSTER_ADDRESS": f"localhost:{free_port}",
        "DOVETAIL_CLUSTER_HOSTS": "2",
        "DOVETAIL_CLUSTER_HOST": "0",
        "DOVETAIL_CLUSTER_KEY": KEY,
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


@contextlib.contextmanager
def script(variables, body, host=1):
    """Runs `body` as the script of a host; `backend` is its Env."""
    head = "import os, signal, sys\nfrom dovetail_cluster.backends.env import Env\n"
    text = f"{head}backend = Env(wait_s=120)\n{textwrap.dedent(body)}\nbackend.close()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        env={**os.environ, **variables, "DOVETAIL_CLUSTER_HOST": str(host)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def daemon(path, body):
    """A line whose process opens the named pipe at `path` as `out` and runs `body`."""
    os.mkfifo(path)
    return [
        "-c",
        f"import os, signal, sys, time\nout = open({str(path)!r}, 'w')\n{textwrap.dedent(body)}",
    ]


@pytest.mark.capability("hosts come from the environment")
def test_daemons_start_on_both_hosts_and_both_have_the_outcome(variables, tmp_path):
    backend = Env()
    assert isinstance(backend, base.Backend)
    assert (backend.count, backend.listen, backend.leads) == (2, "127.0.0.1", True)
    report = "print(os.environ['DOVETAIL_CLUSTER_KEY'], os.environ['HOST'], file=out)\nsys.exit(4)"
    placed = []

    def call():
        for place in range(2):
            path = tmp_path / f"pipe{place}"
            line, key = daemon(path, report), {"DOVETAIL_CLUSTER_KEY": KEY, "HOST": str(place)}
            placed.append(backend.place(line, key, place=place))
            assert isinstance(placed[place], base.Placed)
            assert placed[place].name == f"host {place}"
            assert path.read_text() == f"{KEY} {place}\n"
        return {"loss": 0.5}

    with script(
        variables, "print(backend.together(lambda: 1 / 0))\nprint(backend.together(None))"
    ) as other:
        assert backend.together(call) == {"loss": 0.5}
        assert other.stdout.readline() == "{'loss': 0.5}\n"
        wait_until(placed[0], 4)
        wait_until(placed[1], 4)
        assert backend.together(lambda: 7) == 7
        assert other.stdout.readline() == "7\n"
        assert other.wait(120) == 0
    backend.close()


def wait_until(placed, code):
    """Waits until a daemon that is about to end has ended with `code`."""
    event = threading.Event()
    for _ in range(2400):
        if placed.poll() is not None:
            break
        event.wait(0.05)
    assert placed.poll() == code


def test_the_key_does_not_travel(variables, tmp_path):
    backend = Env()
    placed = backend.place(["-c", ""], {"DOVETAIL_CLUSTER_KEY": KEY, "A": "b"}, place=1)
    assert KEY not in repr(placed._begin)
    assert placed._begin.environment == {"A": "b"}
    backend.close()


@pytest.mark.capability("an error on host 0 is raised on every host")
def test_an_error_reaches_the_other_host(variables):
    backend = Env()
    body = """
        try:
            backend.together(None)
        except Exception as error:
            print(type(error).__name__, error, getattr(error, "rank", None))
    """

    def call():
        raise RankError("rank 1 raised", rank=1, generation=0)

    with script(variables, body) as other:
        with pytest.raises(RankError, match="rank 1 raised"):
            backend.together(call)
        assert other.stdout.readline() == "RankError rank 1 raised 1\n"
        assert other.wait(120) == 0
    backend.close()


def test_an_error_that_cannot_be_pickled_is_told_as_text(variables):
    class Local(Exception):
        pass

    backend = Env()
    with pytest.raises(Local):
        backend.together(lambda: (_ for _ in ()).throw(Local("no")))
    with pytest.raises(KeyboardInterrupt):
        backend.together(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    backend.close()
    first, second = [pickle.loads(outcome.value) for outcome in backend._outcomes]
    assert isinstance(first, JobError)
    assert str(first).startswith("Local on host 0: no (it cannot be sent")
    assert str(second) == "the call on host 0 was ended by KeyboardInterrupt"


def test_kill_ends_a_daemon_on_the_other_host(variables, tmp_path):
    backend = Env()
    line = daemon(tmp_path / "pipe", "print('up', file=out, flush=True)\ntime.sleep(600)")
    placed = backend.place(line, {}, place=1)
    assert placed.poll() is None  # its host is awaited
    with script(variables, "backend.together(None)"):
        with open(tmp_path / "pipe") as lines:
            assert lines.readline() == "up\n"
            assert placed.poll() is None
            placed.kill()
            assert lines.read() == ""
        assert placed.poll() == -signal.SIGKILL
    backend.close()


def test_late_news_of_a_daemon_is_not_taken_for_the_next_one(variables):
    backend = Env()
    inbox = queue.SimpleQueue()
    link = wire.dial(variables["DOVETAIL_CLUSTER_ADDRESS"], bytes.fromhex(KEY))
    link.start(inbox.put, lambda why: None)
    link.send(Follows(1, 1))
    first = backend.place(["-c", "1"], {}, place=1)
    assert inbox.get(timeout=120) == Begin(1, ("-c", "1"), {})
    first.kill()
    second = backend.place(["-c", "2"], {}, place=1)
    assert [inbox.get(timeout=120) for _ in range(2)] == [End(), Begin(2, ("-c", "2"), {})]
    link.send(Ended(1, -9))
    link.send(Ended(2, 5))
    wait_until(second, 5)
    assert first.poll() == -signal.SIGKILL
    link.close()
    backend.close()


@pytest.mark.capability("a host whose script is started again joins again")
def test_a_script_that_dies_takes_its_daemon_and_may_come_back(variables, tmp_path):
    backend = Env()
    body = "print('up', file=out, flush=True)\ntime.sleep(600)"
    placed = backend.place(daemon(tmp_path / "pipe1", body), {}, place=1)
    with script(variables, "backend.together(None)") as other, open(tmp_path / "pipe1") as lines:
        assert lines.readline() == "up\n"
        other.kill()
        assert lines.read() == ""  # the daemon has died with its script
    wait_until(placed, -1)
    placed = backend.place(daemon(tmp_path / "pipe2", body), {}, place=1)
    with script(variables, "print(backend.together(None))") as other:
        with open(tmp_path / "pipe2") as lines:
            assert lines.readline() == "up\n"
        assert backend.together(lambda: "done") == "done"
        assert other.stdout.readline() == "done\n"
        assert other.wait(120) == 0
    backend.close()


@pytest.mark.capability("the script of host 0 may be started again")
def test_a_new_host_0_finds_the_old_followers(variables, tmp_path):
    body = "print('up', file=out, flush=True)\ntime.sleep(600)"
    with script(variables, "print(backend.together(None))") as other:
        first = (
            f"backend.place({daemon(tmp_path / 'pipe1', body)!r}, {{}}, place=1)\nsignal.pause()"
        )
        with script(variables, first, host=0) as old, open(tmp_path / "pipe1") as lines:
            assert lines.readline() == "up\n"
            old.kill()
            assert lines.read() == ""  # it does not run on without its controller
            old.wait(120)  # until its port is free
        backend = Env()
        placed = backend.place(daemon(tmp_path / "pipe2", body), {}, place=1)
        with open(tmp_path / "pipe2") as lines:
            assert lines.readline() == "up\n"
        assert placed.poll() is None
        backend.together(lambda: "again")
        assert other.stdout.readline() == "again\n"
        assert other.wait(120) == 0
    backend.close()


@pytest.mark.capability("SIGTERM at a script reaches its daemon")
@pytest.mark.parametrize("host", [0, 1])
def test_sigterm_at_a_script_is_passed_on(variables, tmp_path, host):
    notice = """
        signal.signal(signal.SIGTERM, lambda number, frame: os.write(out.fileno(), b"notice\\n"))
        print("up", file=out, flush=True)
        while True:
            signal.pause()
    """
    line = daemon(tmp_path / "pipe", notice)
    lead = f"""
        def call():
            backend.place({line!r}, {{}}, place={host})
            while True:
                signal.pause()
        backend.together(call)
    """
    follow = """
        import threading, time
        def listen():
            while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                time.sleep(0.001)
            print("listens", flush=True)
        threading.Thread(target=listen).start()
        backend.together(None)
    """
    with (
        script(variables, lead, host=0) as first,
        script(variables, follow) as second,
        open(tmp_path / "pipe") as lines,
    ):
        assert lines.readline() == "up\n"
        assert second.stdout.readline() == "listens\n"  # the daemon may be faster
        (first, second)[host].send_signal(signal.SIGTERM)
        assert lines.readline() == "notice\n"


@pytest.mark.parametrize("name", ["ADDRESS", "HOSTS", "HOST", "KEY"])
def test_a_missing_variable_is_named(variables, monkeypatch, name):
    monkeypatch.delenv(f"DOVETAIL_CLUSTER_{name}")
    with pytest.raises(ValueError, match=rf"got (no|neither) DOVETAIL_CLUSTER_{name}\b.* export"):
        Env()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HOSTS", "two", r"HOSTS must be a number from 1, got 'two'"),
        ("HOSTS", "0", r"HOSTS must be a number from 1, got '0'"),
        ("HOST", "2", r"HOST must be below DOVETAIL_CLUSTER_HOSTS=2, got 2"),
        ("ADDRESS", "node", r"HOST:PORT, got 'node'"),
    ],
)
def test_a_bad_variable_is_named(variables, monkeypatch, name, value, message):
    monkeypatch.setenv(f"DOVETAIL_CLUSTER_{name}", value)
    with pytest.raises(ValueError, match=message):
        Env()


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("one script on each host trains as one program")
def test_a_job_of_two_scripts(variables):
    """Both scripts return from `run` and `map` with the same values, on the same daemons."""
    text = """
        from dovetail_cluster import Cluster

        def train(ctx):
            import jax, jax.numpy as jnp
            from jax.experimental import multihost_utils
            total = multihost_utils.process_allgather(jnp.float32(ctx.rank + 1)).sum()
            return jax.process_count(), float(total)

        with Cluster.env(wait_s=120, logs="none") as cluster:
            result = cluster.run(train)
            print(result.values, result.generations, cluster.map(lambda: 7), flush=True)
    """
    with contextlib.ExitStack() as stack:
        scripts = []
        for host in range(2):
            process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(text)],
                env={
                    **os.environ,
                    **variables,
                    "DOVETAIL_CLUSTER_HOST": str(host),
                    "JAX_PLATFORMS": "cpu",
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            scripts.append(stack.enter_context(process))
            stack.callback(process.kill)
        outputs = [process.communicate(timeout=120)[0] for process in scripts]
    assert outputs == ["((2, 3.0), (2, 3.0)) 1 [7, 7]\n"] * 2
    assert [process.returncode for process in scripts] == [0, 0]
