# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Executes the notebooks of examples/notebooks and keeps their outputs.

    python scripts/notebooks.py                     # every notebook
    python scripts/notebooks.py quantization        # one of them
    python scripts/notebooks.py --prose NAME        # keeps the outputs: only prose changed
    python scripts/notebooks.py --check             # executes nothing; exit code 1 for a difference

People edit NAME.py (py:percent). This script executes it in an empty folder, in the environment at
hand, and writes NAME.ipynb: the same cells with their outputs, without paths of the machine,
progress bars, timestamps and versions, so that a diff shows what changed. `jupytext --sync` works
on a pair too: run the script after it, for jupytext makes a cell of the licence.

The licence is the first two lines of NAME.py, and no cell: a notebook opens with its title. A cell
tagged `links` (Colab, GitHub) follows where `[tool.dovetail] repository` in pyproject.toml is set.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import compilation_cache
import metadata
import workspace

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOLDER = workspace.ROOT / "examples" / "notebooks"
LICENCE = "# Copyright 2026 The Dovetail Authors\n# SPDX-License-Identifier: Apache-2.0\n"
FORMAT = "py:percent"
HANG_S = 900  # of one cell
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
WIDGET = "application/vnd.jupyter.widget-view+json"
# One state of a progress bar of tqdm; each overwrites the one before.
_BAR = re.compile(r"[^\r\n]*\d+%\|[^\r\n]*\|[^\r\n]*|[^\r\n]*\[\d\d:\d\d(?:<[^\]]*)?\][^\r\n]*")


def names(folder: Path = FOLDER) -> list[str]:
    """The notebooks, by the name of their text."""
    return sorted(f.stem for f in folder.glob("*.py"))


def repository(root: Path = workspace.ROOT) -> str:
    """The address of the repository on GitHub, which Colab opens; "" if it has none there."""
    address = metadata.repository(root)
    return address if address.startswith("https://github.com/") else ""


def read(text: str) -> NotebookNode:
    """The cells of a py:percent text, without the licence."""
    import jupytext

    notebook = jupytext.reads(text.removeprefix(LICENCE).lstrip("\n"), fmt=FORMAT)
    notebook.cells = [c for c in notebook.cells if c.source.strip() != LICENCE.strip()]
    return notebook


def read_stored(file: Path) -> NotebookNode:
    """The notebook of a file, without the licence as a cell."""
    import nbformat

    notebook = nbformat.read(file, as_version=4)
    notebook.cells = [c for c in notebook.cells if c.source.strip() != LICENCE.strip()]
    return notebook


def write(notebook: NotebookNode) -> str:
    """The py:percent text of cells, with the licence."""
    import jupytext

    return f"{LICENCE}\n{jupytext.writes(notebook, fmt=FORMAT)}"


def link(notebook: NotebookNode, name: str, address: str) -> NotebookNode:
    """Adds the cell with the links to Colab and GitHub, anew, or removes it.

    Args:
        notebook: Is changed, and returned.
        name: Name of the notebook.
        address: The repository; "" for no links.
    """
    from nbformat.v4 import new_markdown_cell

    notebook.cells = [c for c in notebook.cells if "links" not in c.metadata.get("tags", [])]
    if address:
        page = f"{address}/blob/main/examples/notebooks/{name}.ipynb"
        colab = page.replace("https://github.com/", "https://colab.research.google.com/github/")
        source = f"[![Open in Colab]({BADGE})]({colab})\n[View on GitHub]({page})"
        notebook.cells.insert(1, new_markdown_cell(source, metadata={"tags": ["links"]}))
    return notebook


def normal(notebook: NotebookNode) -> NotebookNode:
    """The notebook with stable ids and with the metadata that Jupyter and Colab read."""
    from nbformat.v4 import new_notebook

    for number, cell in enumerate(notebook.cells):
        tags = cell.metadata.get("tags")
        cell["id"], cell["metadata"] = f"cell-{number:02}", {"tags": tags} if tags else {}
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return new_notebook(cells=notebook.cells, metadata=metadata)


def sources(notebook: NotebookNode) -> list[tuple[str, str, list[str]]]:
    """The cells without their outputs: type, source, tags."""
    return [(c.cell_type, c.source, c.metadata.get("tags", [])) for c in notebook.cells]


def differing(name: str, folder: Path = FOLDER) -> str:
    """The first difference of a pair, also of its links from the setting; "" for none."""
    text, file = folder / f"{name}.py", folder / f"{name}.ipynb"
    if not text.read_text(encoding="utf-8").startswith(LICENCE):
        return f"{text.name} does not begin with the licence"
    written = sources(read(text.read_text(encoding="utf-8")))
    if written != sources(link(read(text.read_text(encoding="utf-8")), name, repository())):
        return f"{text.name} has other links than pyproject.toml says"
    if not file.exists():
        return f"{file.name} is missing"
    stored = sources(read_stored(file))
    if stored == written:
        return ""
    pairs = enumerate(zip(stored, written, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(stored), len(written)))
    return f"{file.name} differs from {text.name} in cell {first}"


def environment(folder: Path) -> dict[str, str]:
    """Variables of a kernel that writes nothing outside of `folder` and the caches."""
    caches = compilation_cache.root().parent
    home, temporary = folder / "home", folder / "tmp"
    for made in (home, temporary, folder / "ipython"):
        made.mkdir()
    return {
        **os.environ,
        **compilation_cache.choose(os.environ)[0],
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "IPYTHONDIR": str(folder / "ipython"),
        "MPLCONFIGDIR": str(caches / "matplotlib"),  # its list of fonts takes seconds to make
        "PIP_NO_INDEX": "1",  # the packages are here, or the notebook says what is missing
        "PYTHONDONTWRITEBYTECODE": "",
    }


def execute(
    notebook: NotebookNode, folder: Path, variables: Mapping[str, str] | None = None
) -> float:
    """Executes all cells in place, in the empty folder `folder/work`.

    Args:
        notebook: Its outputs are replaced.
        folder: An existing folder. `work`, `home` and `tmp` appear in it: a notebook leaves them
            empty.
        variables: More variables of the environment.

    Returns:
        CPU seconds of the kernel and its processes.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
        RuntimeError: A cell wrote to standard error.
    """
    from nbclient import NotebookClient

    (folder / "work").mkdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    client = NotebookClient(
        notebook,
        timeout=HANG_S,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder / "work")}},
    )
    client.execute(env={**environment(folder), **(variables or {})})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [kept for o in cell.outputs if (kept := clean(o, folder)) is not None]
            warnings = [o.text for o in cell.outputs if o.get("name") == "stderr"]
            if warnings:
                raise RuntimeError(
                    f"a notebook must not warn, got {''.join(warnings)[:2000]!r} from the cell\n"
                    f"{cell.source}\nmend the cause, or print what a reader should know"
                )
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def clean(output: Any, folder: Path) -> Any:
    """An output without progress bars and paths of this machine; None if nothing remains."""
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
    """The text with `~`, `TEMP` and `site-packages` in place of folders of this machine."""
    packages = re.compile(r"[^\s'\"<>]*/(?:site|dist)-packages")
    text = packages.sub("site-packages", text)
    known = {folder / "tmp": "TEMP", folder / "work": ".", folder: "TEMP"}
    known |= {workspace.ROOT: "dovetail", Path(sys.base_prefix): "python", Path.home(): "~"}
    for path, name in known.items():
        text = text.replace(str(path), name)
    return text


def mended(name: str, folder: Path) -> NotebookNode:
    """The cells of a text, after its licence and its links are written where they differ."""
    text = folder / f"{name}.py"
    content = text.read_text(encoding="utf-8")
    notebook = read(content)
    before = sources(notebook)
    if sources(link(notebook, name, repository())) != before or not content.startswith(LICENCE):
        text.write_text(write(notebook), encoding="utf-8")
    return notebook


def keep_outputs(name: str, folder: Path = FOLDER) -> str:
    """Writes the text's cells with the stored outputs; the fault if code changed, else ""."""
    import nbformat

    notebook, file = mended(name, folder), folder / f"{name}.ipynb"
    stored = normal(read_stored(file))
    before, after = ([c for c in n.cells if c.cell_type == "code"] for n in (stored, notebook))
    if [c.source for c in before] != [c.source for c in after]:
        return f"{name} must be executed, for its code has changed"
    for old, new in zip(before, after, strict=True):
        new.outputs, new.execution_count = old.outputs, old.execution_count
    nbformat.write(normal(notebook), file)
    return ""


def build(name: str, folder: Path = FOLDER) -> str:
    """Executes one notebook and writes both files of its pair; a line about it."""
    import nbformat

    notebook = mended(name, folder)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        cpu_s = execute(notebook, Path(temporary).resolve())
    file = folder / f"{name}.ipynb"
    nbformat.write(normal(notebook), file)
    wall_s, size = time.monotonic() - started, file.stat().st_size
    return f"{name}: {cpu_s:.0f} CPU seconds, {wall_s:.0f} s, {size / 1e3:.0f} kB"


def main() -> int:
    """Executes or checks the named notebooks, all without a name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a text; all without one")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="execute and write nothing")
    mode.add_argument("--prose", action="store_true", help="execute nothing, keep the outputs")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names()):
        parser.error(f"NAME must be one of {', '.join(names())}, got {', '.join(sorted(unknown))}")
    action = differing if options.check else keep_outputs if options.prose else build
    faults = 0
    for name in options.names or names():
        if line := action(name):
            print(line, flush=True)
            faults += action is not build
    if not faults:
        return 0
    print(f"run: python scripts/notebooks.py {' '.join(options.names)}".rstrip())
    return 1


if __name__ == "__main__":
    sys.exit(main())
