# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Executes the notebooks of examples/notebooks and keeps their outputs.

    python scripts/notebooks.py [NAME ...]          # without names: every notebook

People edit NAME.py (py:percent). This script executes it in an empty folder, in the environment at
hand, and writes NAME.ipynb: the same cells with their outputs, without paths of the machine and
progress bars, so that a diff shows what changed. The licence is the first two lines of NAME.py, and
no cell: a notebook opens with its title.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

import compilation_cache
import workspace

FOLDER = workspace.ROOT / "examples" / "notebooks"
LICENCE = "# Copyright 2026 The Dovetail Authors\n# SPDX-License-Identifier: Apache-2.0\n"
HANG_S = 900  # of one cell
WIDGET = "application/vnd.jupyter.widget-view+json"
# One state of a progress bar of tqdm; each overwrites the one before.
_BAR = re.compile(r"[^\r\n]*\d+%\|[^\r\n]*\|[^\r\n]*|[^\r\n]*\[\d\d:\d\d(?:<[^\]]*)?\][^\r\n]*")


def names() -> list[str]:
    """Returns the notebooks, by the name of their text."""
    return sorted(f.stem for f in FOLDER.glob("*.py"))


def read(name: str) -> NotebookNode:
    """Returns the cells of a text, without outputs, with stable ids and little metadata."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    cells = jupytext.reads(text.removeprefix(LICENCE).lstrip("\n"), fmt="py:percent").cells
    for number, cell in enumerate(cells):
        tags = cell.metadata.get("tags")
        cell["id"], cell["metadata"] = f"cell-{number:02}", {"tags": tags} if tags else {}
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def stored(name: str) -> NotebookNode:
    """Returns the notebook with its outputs, as it was executed last."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def environment(folder: Path) -> dict[str, str]:
    """Returns variables of a kernel that writes nothing outside of `folder` and the caches."""
    caches = compilation_cache.root().parent
    for name in ("home", "tmp", "ipython"):
        (folder / name).mkdir()
    return {
        **os.environ,
        **compilation_cache.choose(os.environ)[0],
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "IPYTHONDIR": str(folder / "ipython"),
        "MPLCONFIGDIR": str(caches / "matplotlib"),  # its list of fonts takes seconds to make
        "PIP_NO_INDEX": "1",  # the packages are here, or the notebook says what is missing
        "PYTHONDONTWRITEBYTECODE": "",
    }


def execute(
    notebook: NotebookNode, folder: Path, variables: Mapping[str, str] | None = None
) -> None:
    """Executes all cells in place, in the empty folder `folder/work`.

    Args:
        notebook: Its outputs are replaced.
        folder: An existing folder. `work`, `home` and `tmp` appear in it: a notebook leaves them
            empty.
        variables: More variables of the environment.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
        RuntimeError: A cell wrote to standard error.
    """
    (folder / "work").mkdir()
    client = NotebookClient(
        notebook,
        timeout=HANG_S,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder / "work")}},
    )
    metadata = dict(notebook.metadata)
    client.execute(env={**environment(folder), **(variables or {})})
    notebook.metadata.update(metadata)  # without the kernel's version of Python
    for cell in [c for c in notebook.cells if c.cell_type == "code"]:
        cell.outputs = [kept for o in cell.outputs if (kept := clean(o, folder)) is not None]
        if warnings := [o.text for o in cell.outputs if o.get("name") == "stderr"]:
            raise RuntimeError(
                f"a notebook must not warn, got {''.join(warnings)[:2000]!r} from the cell\n"
                f"{cell.source}\nmend the cause, or print what a reader should know"
            )


def clean(output: Any, folder: Path) -> Any:
    """Returns an output without progress bars and paths of this machine; None for nothing."""
    if output.output_type == "stream":
        output.text = portable(_BAR.sub("", output.text), folder)
        if output.name == "stderr":  # where bars are drawn
            output.text = output.text.strip("\r\n ")
        return output if output.text else None
    data = output.get("data", {})
    if WIDGET in data:
        return None
    for kind in ("text/plain", "text/html", "image/svg+xml", "text/markdown"):
        if kind in data:
            data[kind] = portable(data[kind], folder)
    if "image/png" in data:
        data.pop("text/plain", None)  # <Figure size 640x480 with 1 Axes>
    return output


def portable(text: str, folder: Path) -> str:
    """Returns the text with `~`, `TEMP` and `site-packages` for folders of this machine."""
    packages = re.compile(r"[^\s'\"<>]*/(?:site|dist)-packages")
    text = packages.sub("site-packages", text)
    known = {folder / "tmp": "TEMP", folder / "work": ".", folder: "TEMP"}
    known |= {workspace.ROOT: "dovetail", Path(sys.base_prefix): "python", Path.home(): "~"}
    for path, name in known.items():
        text = text.replace(str(path), name)
    return text


def main() -> None:
    """Executes the named notebooks, all without a name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *names()], metavar="NAME")
    for name in parser.parse_args().names or names():
        print(name, flush=True)
        notebook = read(name)
        with tempfile.TemporaryDirectory() as temporary:
            execute(notebook, Path(temporary).resolve())
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    main()
