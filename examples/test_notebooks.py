# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every notebook runs, leaves nothing behind, and is stored as its text says."""

import base64
import os
import re
import shutil
import subprocess
import sys

import nbclient
import nbformat
import pytest

import notebooks

NAMES = notebooks.names()
CHEAP = "damage_and_resume"  # for what is not tried on every notebook
NOTEBOOK_BYTES, PICTURE_BYTES = 400_000, 60_000
# A folder of somebody's machine, an address in memory, a time of day, the rate of a bar.
MACHINE = re.compile(r"(?<![\w.~<])/(?:home|root|tmp|Users|opt|var|work)/|0x[0-9a-f]{6,}")
CLOCK = re.compile(r"\d\d:\d\d:\d\d|\d(?:it|step)/s|20\d\d-\d\d-\d\d")
ABSENT = "import sys; sys.modules[{!r}] = None\n"  # as sitecustomize.py


def read(name):
    return notebooks.read((notebooks.FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def stored(name):
    return nbformat.read(notebooks.FOLDER / f"{name}.ipynb", as_version=4)


def outputs(notebook):
    return [output for c in notebook.cells if c.cell_type == "code" for output in c.outputs]


def text_of(output):
    """The output's text, without the pictures."""
    data = output.get("data", {})
    return output.get("text", "") + "".join(v for k, v in data.items() if k.startswith("text/"))


def remains(folder):
    """The files and folders that a notebook left outside of the caches."""
    roots = [folder / name for name in ("work", "home", "tmp")]
    return sorted(str(p.relative_to(folder)) for root in roots for p in root.rglob("*"))


@pytest.mark.parametrize("name", NAMES)
def test_both_files_of_a_pair_have_the_same_cells(name):
    assert notebooks.differing(name) == ""


@pytest.mark.parametrize("name", NAMES)
def test_opens_with_a_title_and_an_install_cell_and_ends_with_what_is_next(name):
    first, *others = [c for c in read(name).cells if "links" not in c.metadata.get("tags", [])]
    title, *paragraph = first.source.split("\n\n")
    assert title.startswith("# ")
    assert len(paragraph) == 1
    assert others[0].metadata["tags"] == ["install"]
    assert "%pip install -q dovetail-stack matplotlib" in others[0].source
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
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
        notebooks.execute(notebook, tmp_path)
    assert remains(tmp_path) == []


@pytest.mark.parametrize("name", [CHEAP, "digits", "eight_devices"])  # the kinds of install cells
def test_without_matplotlib_the_install_cell_says_what_is_missing(name, tmp_path):
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent/sitecustomize.py").write_text(ABSENT.format("matplotlib"))
    notebook = read(name)
    (at,) = (i for i, c in enumerate(notebook.cells) if "install" in c.metadata.get("tags", []))
    notebook.cells = notebook.cells[: at + 1]
    notebooks.execute(notebook, tmp_path, {"PYTHONPATH": str(tmp_path / "absent")})
    said = "".join(map(text_of, outputs(notebook)))
    assert "matplotlib is missing: pip install dovetail-stack matplotlib" in said


def test_links_appear_once_the_repository_is_set():
    address = "https://github.com/OWNER/NAME"
    notebook = notebooks.link(read(CHEAP), CHEAP, address)
    links = notebook.cells[1]
    assert links.metadata["tags"] == ["links"]
    page = f"github.com/OWNER/NAME/blob/main/examples/notebooks/{CHEAP}.ipynb)"
    colab = page.replace("github.com", "colab.research.google.com/github")
    assert f"](https://{colab}" in links.source
    assert f"](https://{page}" in links.source
    again = notebooks.link(notebooks.read(notebooks.write(notebook)), CHEAP, address)
    assert notebooks.sources(again) == notebooks.sources(notebook)
    plain = notebooks.link(again, CHEAP, "")
    assert notebooks.sources(plain) == notebooks.sources(notebooks.link(read(CHEAP), CHEAP, ""))


def test_a_repository_elsewhere_has_no_links(tmp_path):
    for address in ("https://github.com/OWNER/NAME", "https://git.example/OWNER/NAME", ""):
        (tmp_path / "pyproject.toml").write_text(f'[tool.dovetail]\nrepository = "{address}"\n')
        expected = address if "github.com" in address else ""
        assert notebooks.repository(tmp_path) == expected


def test_jupytext_syncs_a_pair_and_keeps_outputs_and_licence(tmp_path):
    for file in notebooks.FOLDER.glob(f"{CHEAP}.*"):
        shutil.copy(file, tmp_path)
    shutil.copy(notebooks.FOLDER / "jupytext.toml", tmp_path)
    text, file = tmp_path / f"{CHEAP}.py", tmp_path / f"{CHEAP}.ipynb"
    changed = text.read_text(encoding="utf-8").replace("# # ", "# # Changed: ", 1)
    text.write_text(changed, encoding="utf-8")
    now = file.stat().st_mtime + 10
    os.utime(text, (now, now))
    line = [sys.executable, "-m", "jupytext", "--sync", str(file)]
    subprocess.run(line, check=True, capture_output=True)
    assert "# Changed: " in file.read_text(encoding="utf-8")
    assert outputs(nbformat.read(file, as_version=4)) == outputs(stored(CHEAP))
    assert notebooks.differing(CHEAP, tmp_path)  # the licence has become a cell
    assert notebooks.keep_outputs(CHEAP, tmp_path) == ""
    assert notebooks.differing(CHEAP, tmp_path) == ""
    assert text.read_text(encoding="utf-8").startswith(notebooks.LICENCE)
    assert outputs(nbformat.read(file, as_version=4)) == outputs(stored(CHEAP))


def test_prose_changes_and_code_must_be_executed(tmp_path):
    for file in notebooks.FOLDER.glob(f"{CHEAP}.*"):
        shutil.copy(file, tmp_path)
    text = tmp_path / f"{CHEAP}.py"
    content = text.read_text(encoding="utf-8")
    text.write_text(content.replace("# # ", "# # Changed: ", 1), encoding="utf-8")
    assert (
        notebooks.differing(CHEAP, tmp_path) == f"{CHEAP}.ipynb differs from {CHEAP}.py in cell 0"
    )
    assert notebooks.keep_outputs(CHEAP, tmp_path) == ""
    assert notebooks.differing(CHEAP, tmp_path) == ""
    text.write_text(content.replace("import json", "import json, os", 1), encoding="utf-8")
    assert "must be executed" in notebooks.keep_outputs(CHEAP, tmp_path)


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

    bar = new_output("stream", name="stderr", text="\r 40%|####  | 4/10 [00:01<00:02, 9.1it/s]\n")
    assert notebooks.clean(bar, tmp_path) is None
    warning = new_output("stream", name="stderr", text="UserWarning: look\n")
    assert notebooks.clean(warning, tmp_path).text == "UserWarning: look"
    widget = new_output("display_data", data={notebooks.WIDGET: {}, "text/plain": "0%"})
    assert notebooks.clean(widget, tmp_path) is None
    paths = f"{tmp_path}/tmp/run {sys.prefix}/lib/site-packages/jax/x.py"
    printed = new_output("stream", name="stdout", text=paths)
    assert notebooks.clean(printed, tmp_path).text == "TEMP/run site-packages/jax/x.py"
