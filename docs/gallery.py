# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of examples/, and the gallery: a card for each notebook, with its first picture.

The pictures are those that a notebook is stored with; nothing is executed here. The files are
copied, since links find only pages below the folder of the documentation.
"""

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
EXAMPLES = DOCS.parent / "examples"
PAGES = DOCS / "examples"  # git ignores it
FOLDER = DOCS / "generated/notebooks"  # git ignores it
# The order is that of a first visit. A notebook without a place here is an error.
ORDER = (
    "language_model",
    "plain_jax",
    "hugging_face",
    "damage_and_resume",
    "many_hosts",
    "serving",
    "serving_load",
    "quantization",
    "engine",
    "chat_server",
    "post_training",
    "mixtures",
    "optimizers",
    "slow_spots",
    "digits",
    "attention",
    "eight_devices",
)


def write() -> None:
    """Writes the pages, the cards with their pictures, and the list of notebooks.

    Raises:
        ValueError: A notebook is not in `ORDER`.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    present = {file.stem: file for file in EXAMPLES.glob("notebooks/*.ipynb")}
    unknown = sorted(present.keys() - set(ORDER))
    if unknown:
        raise ValueError(
            f"every notebook has a place in the gallery; got notebook={unknown[0]!r}; add its name "
            "to ORDER in docs/gallery.py"
        )
    copy_pages()
    names = [name for name in ORDER if name in present]
    cards = "\n".join(card(present[name], FOLDER) for name in names)
    (FOLDER / "cards.txt").write_text(f"::::{{grid}} 1 2 2 3\n:gutter: 3\n\n{cards}::::\n", "utf-8")
    pages = "\n".join(f"examples/notebooks/{name}" for name in names)
    toctree = f"```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
    (FOLDER / "pages.txt").write_text(toctree, encoding="utf-8")


def copy_pages() -> None:
    """Copies the examples and the notebooks, with links to pages of the site."""
    shutil.rmtree(PAGES, ignore_errors=True)
    (PAGES / "notebooks").mkdir(parents=True)
    examples = [f for f in EXAMPLES.glob("*.py") if not f.name.startswith(("test_", "conftest"))]
    for file in [*examples, *EXAMPLES.glob("notebooks/*.ipynb")]:
        text = site_links(file.read_text(encoding="utf-8"))
        (PAGES / file.relative_to(EXAMPLES)).write_text(text, encoding="utf-8")


def card(file: Path, folder: Path) -> str:
    """Writes the picture of a notebook to `folder`, and returns its card.

    Args:
        file: The notebook. Its first cell is a title and a paragraph.
        folder: Folder of the pictures.

    Returns:
        A card of sphinx-design, without a picture if no output of the notebook is one.
    """
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    title, sentence = heading("".join(cells[0]["source"]))
    lines = [f":::{{grid-item-card}} {title}", f":link: /examples/notebooks/{file.stem}"]
    lines.append(":link-type: doc")
    picture = first_picture(cells)
    if picture is not None:
        (folder / f"{file.stem}.png").write_bytes(picture)
        lines += [f":img-top: /generated/notebooks/{file.stem}.png", f":img-alt: {title}"]
    return "\n".join([*lines, "", sentence, ":::", ""])


def heading(text: str) -> tuple[str, str]:
    """Returns the title of a Markdown text and the first sentence under it."""
    title, *paragraphs = (block.strip() for block in re.split(r"\n\s*\n", text.strip()))
    paragraph = " ".join(paragraphs[0].split()) if paragraphs else ""
    sentence = re.match(r".*?[.!?](?= |$)", paragraph)
    return title.removeprefix("# "), sentence[0] if sentence else paragraph


def first_picture(cells: list[dict[str, Any]]) -> bytes | None:
    """Returns the first PNG among the stored outputs, or None."""
    for cell in cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {}).get("image/png")
            if data is not None:
                return base64.b64decode("".join(data))
    return None


def site_links(text: str) -> str:
    """Returns a text with links to pages, where it has links to files of the repository."""
    text = re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", text)
    text = re.sub(r"\]\(((?:\.\./)+)README\.md\)", r"](\1index.md)", text)
    return re.sub(
        r"\]\(((?:\.\./)+)packages/(\w+)(?:/README\.md|/)?\)", r"](\1packages/\2.md)", text
    )
