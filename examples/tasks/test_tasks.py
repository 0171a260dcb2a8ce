# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of the page "31 tasks, 31 programs" run as shown, and end as they say.

A program ends with the comment `# prints: TEXT`: its last line of output. Whole
numbers and words must be equal. Decimal fractions depend on the machine and on the
sources of Python's standard library, which are the text of most programs: they may
differ by a tenth, and by one unit of their last digit.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm_start

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs/tasks.md"
PROGRAMS = sorted({*HERE.glob("*.py"), *HERE.glob("*.sh")} - {Path(__file__).resolve()})
LINES, COLUMNS = 24, 88
HANG_S = 900  # only a program that hangs takes this long
FRACTION = r"-?\d+\.\d+"


def code(file: Path) -> list[str]:
    """The lines of a program that a reader sees; blank ones do not count."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line for line in lines[2:] if line]


def expected(file: Path) -> str:
    """The last line of output that the program states."""
    last = code(file)[-1]
    assert last.startswith("# prints: "), f"{file.name} must end with `# prints: TEXT`"
    return last.removeprefix("# prints: ")


def ends_with(output: str, line: str) -> bool:
    """Whether the last line of an output is the stated one."""
    last = output.strip().rpartition("\n")[2].strip()
    if re.sub(FRACTION, "", last) != re.sub(FRACTION, "", line):
        return False
    return all(
        abs(float(a) - float(b))
        <= abs(float(b)) / 10 + 10.0 ** -len(b.partition(".")[2])
        for a, b in zip(
            re.findall(FRACTION, last), re.findall(FRACTION, line), strict=True
        )
    )


def run(file: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs in an empty folder: by a shell, or in a fork that has imported JAX."""
    source = file.read_text(encoding="utf-8")
    if file.suffix == ".sh":
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return subprocess.run(
            ["bash", "-e", "-c", source],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    # Programs on several CPU devices stay out of the cache: docs/cpu_meshes.md.
    cache = "false" if "force_host_platform_device_count" in source else "true"
    program = f"import os; os.chdir({str(folder)!r})\n{source}"
    return warm_start.run(
        ["-c", program], env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": cache}
    )


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda f: f.stem)
def test_task_runs_and_prints_what_it_says(file, tmp_path):
    done = run(file, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ends_with(done.stdout, expected(file)), done.stdout[-500:]


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda f: f.stem)
def test_task_fits_a_page(file):
    lines = code(file)
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert "..." not in "\n".join(lines)


def test_the_page_has_each_program_once():
    shown = re.findall(
        r"\{literalinclude\} \.\./examples/tasks/(\S+)", PAGE.read_text("utf-8")
    )
    assert sorted(shown) == [file.name for file in PROGRAMS]
    assert len(shown) == 31


@pytest.mark.parametrize(
    "last, line, same",
    [
        ("step 20", "step 20", True),
        ("step 21", "step 20", False),
        ("loss 2.7", "loss 2.6", True),
        ("loss 3.1", "loss 2.6", False),
        ("loss nan", "loss 2.6", False),
        ("equal: False", "equal: True", False),
        ("loss 2.6 2.6", "loss 2.6", False),
    ],
)
def test_a_last_line_is_compared_by_words_and_numbers(last, line, same):
    assert ends_with(f"before\n{last}\n", line) is same
