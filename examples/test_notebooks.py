# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every notebook runs, leaves nothing behind, and is stored as its text says."""

import base64
import re
import sys

import nbclient
import pytest

import notebooks
from notebooks import read, stored

NAMES = notebooks.names()
CHEAP = "damage_and_resume"  # for what is not tried on every notebook
NOTEBOOK_BYTES, PICTURE_BYTES = 400_000, 60_000
# A folder of a machine, an address in memory, a time of day, the rate of a bar.
MACHINE = re.compile(
    r"(?<![\w.~<])/(?:home|root|tmp|Users|opt|var|work)/|0x[0-9a-f]{6,}"
)
CLOCK = re.compile(r"\d\d:\d\d:\d\d|\d(?:it|step)/s|20\d\d-\d\d-\d\d")
ABSENT = "import sys; sys.modules[{!r}] = None\n"  # as sitecustomize.py


def outputs(notebook):
    return [
        output for c in notebook.cells if c.cell_type == "code" for output in c.outputs
    ]


def text_of(output):
    """The output's text, without the pictures."""
    data = output.get("data", {})
    return output.get("text", "") + "".join(
        v for k, v in data.items() if k.startswith("text/")
    )


def remains(folder):
    """The files and folders that a notebook left outside of the caches."""
    roots = [folder / name for name in ("work", "home", "tmp")]
    return sorted(str(p.relative_to(folder)) for root in roots for p in root.rglob("*"))


@pytest.mark.parametrize("name", NAMES)
def test_both_files_of_a_pair_have_the_same_cells(name):
    text, notebook = read(name), stored(name)
    for cell in (*text.cells, *notebook.cells):
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
    assert notebook == text, f"run scripts/notebooks.py {name}"
    assert (notebooks.FOLDER / f"{name}.py").read_text().startswith(notebooks.LICENCE)


@pytest.mark.parametrize("name", NAMES)
def test_opens_with_a_title_and_an_install_cell_and_ends_with_what_is_next(name):
    first, *others = read(name).cells
    title, *paragraph = first.source.split("\n\n")
    assert title.startswith("# ")
    assert len(paragraph) == 1
    assert others[0].metadata["tags"] == ["install"]
    assert others[0].source == read(CHEAP).cells[1].source
    assert "noqa" not in "".join(cell.source for cell in others)
    assert others[-1].source.startswith("## What to try next\n")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", others[-1].source)
    assert len(links) >= 2
    missing = [x for x in links if ":" not in x and not (notebooks.FOLDER / x).exists()]
    assert missing == []


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_whole_small_and_of_no_machine(name):
    notebook = stored(name)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {output.output_type for output in outputs(notebook)}
    assert kinds <= {"stream", "display_data", "execute_result"}  # no error
    texts = [text_of(output) for output in outputs(notebook)]
    assert [t for t in texts if MACHINE.search(t)] == []
    assert [t for t in texts if CLOCK.search(t)] == []
    data = [output.get("data", {}) for output in outputs(notebook)]
    pictures = [len(base64.b64decode(d["image/png"])) for d in data if "image/png" in d]
    assert pictures
    assert max(pictures) <= PICTURE_BYTES
    assert (notebooks.FOLDER / f"{name}.ipynb").stat().st_size <= NOTEBOOK_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_runs_and_leaves_nothing(name, tmp_path):
    notebooks.execute(read(name), tmp_path)
    assert remains(tmp_path) == []


def test_runs_twice_in_one_kernel(tmp_path):
    notebook = read(CHEAP)
    notebook.cells = [*notebook.cells, *read(CHEAP).cells]
    notebooks.execute(notebook, tmp_path)
    assert remains(tmp_path) == []


def test_a_notebook_given_up_half_way_leaves_nothing(tmp_path):
    notebook = read(CHEAP)
    notebook.cells = notebook.cells[: len(notebook.cells) // 2]
    notebook.cells[-1].cell_type = "code"
    notebook.cells[-1].source = "assert any(work.iterdir())\nraise KeyboardInterrupt"
    with pytest.raises(
        nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"
    ):
        notebooks.execute(notebook, tmp_path)
    assert remains(tmp_path) == []


@pytest.mark.parametrize("absent", ["matplotlib", "dovetail_stack"])
def test_an_install_cell_that_cannot_install_stops_with_a_sentence(absent, tmp_path):
    (tmp_path / "absent").mkdir()
    lines = "".join(map(ABSENT.format, (absent, "pip")))
    (tmp_path / "absent/sitecustomize.py").write_text(lines)
    notebook = read(CHEAP)
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        notebooks.execute(notebook, tmp_path, {"PYTHONPATH": str(tmp_path / "absent")})
    (said,) = [output for output in outputs(notebook) if output.output_type == "error"]
    assert said.ename == "SystemExit"
    assert said.evalue.endswith(
        "cannot be installed. In a clone, run scripts/notebooks"
    )
    assert (
        sum(bool(line.strip()) for t in said.traceback for line in t.splitlines()) == 2
    )
    assert [c.execution_count for c in notebook.cells if c.cell_type == "code"][
        1:3
    ] == [None] * 2


def test_a_progress_bar_is_a_widget(tmp_path):
    from nbformat.v4 import new_code_cell, new_notebook

    lines = ["from dovetail_stack.progress import Bar", "with Bar(steps=2) as bar:"]
    source = "\n".join([*lines, "    bar.write(0, {'loss': 1.0})"])
    notebook = new_notebook(cells=[new_code_cell(source)])
    client = nbclient.NotebookClient(notebook, extra_arguments=["--log-level=ERROR"])
    client.execute()
    assert [notebooks.WIDGET in output.data for output in outputs(notebook)] == [True]


def test_bars_and_folders_of_the_machine_are_removed(tmp_path):
    from nbformat.v4 import new_output

    bar = new_output(
        "stream", name="stderr", text="\r 40%|####  | 4/10 [00:01<00:02, 9.1it/s]\n"
    )
    assert notebooks.clean(bar, tmp_path) is None
    warning = new_output("stream", name="stderr", text="UserWarning: look\n")
    assert notebooks.clean(warning, tmp_path).text == "UserWarning: look"
    widget = new_output("display_data", data={notebooks.WIDGET: {}, "text/plain": "0%"})
    assert notebooks.clean(widget, tmp_path) is None
    paths = f"{tmp_path}/tmp/run {sys.prefix}/lib/site-packages/jax/x.py"
    printed = new_output("stream", name="stdout", text=paths)
    assert notebooks.clean(printed, tmp_path).text == "TEMP/run site-packages/jax/x.py"
