# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The documentation site: its tables come from the code, and the names in them exist."""

import base64
import importlib
import importlib.metadata
import inspect
import json
import math
import re
import sys
from pathlib import Path

import pytest

import dovetail_stack.cli
import workspace

sys.path.append(str(workspace.ROOT / "docs"))

import changelogs
import gallery
import install
import versions

DOCS = workspace.ROOT / "docs"
GUIDES = sorted(DOCS.glob("howto/*.md"))
# `dovetail_train.Trainer(accumulate=, mesh=mesh)` or `optax.adamw`
CALL = re.compile(r"`((?:dovetail_\w+|optax|jax|nnx)\.[\w.]+)(?:\(([^`]*)\))?`")
# `dovetail quantize --bits`, or options alone, which are those of the page's command
COMMAND = re.compile(r"`dovetail ([a-z]+(?: [a-z]+)?)((?: --[a-z-]+)*)`")
OPTIONS = re.compile(r"`(--[a-z-]+(?: --[a-z-]+)*)`")
# Whose options stand alone on a page; on the others those of `dovetail train pretrain`.
COMMANDS = {"servers": "serve"}
MEMBERS = workspace.members()
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def rows(text: str) -> list[str]:
    """Returns the lines of a page's tables."""
    return [line for line in text.splitlines() if line.startswith("|")]


def wrong_call(name: str, arguments: str | None) -> str | None:
    """Returns what is wrong with a call as a table shows it, or None."""
    module, *parts = name.replace("nnx.", "flax.nnx.").split(".")
    value = importlib.import_module(module)
    for i, part in enumerate(parts):
        if inspect.ismodule(value) and not hasattr(value, part):
            try:
                importlib.import_module(".".join([module, *parts[: i + 1]]))
            except ImportError:
                return f"{name} does not exist"
        if not hasattr(value, part):
            return f"{name} does not exist"
        value = getattr(value, part)
    keywords = re.findall(r"(\w+)=", arguments or "")
    # A module of Flax hides its constructor behind a metaclass.
    function = value.__init__ if inspect.isclass(value) else value
    parameters = inspect.signature(function).parameters if keywords else {}
    unknown = [keyword for keyword in keywords if keyword not in parameters]
    return f"{name} takes no {unknown[0]}=" if unknown else None


def wrong_command(words: str, options: str) -> str | None:
    """Returns the first option that the command lacks, or None."""
    argv = words.split()
    parser = dovetail_stack.cli.parser(argv)
    for word in argv:
        (subparsers,) = (a for a in parser._actions if hasattr(a, "_name_parser_map"))
        if word not in subparsers.choices:
            return f"there is no command dovetail {words}"
        parser = subparsers.choices[word]
    unknown = [x for x in options.split() if x not in parser._option_string_actions]
    return f"dovetail {words} has no {unknown[0]}" if unknown else None


@pytest.mark.once
@pytest.mark.parametrize("page", GUIDES, ids=lambda f: f.stem)
def test_every_name_in_a_table_exists(page):
    lines = "\n".join(rows(page.read_text()))
    calls, commands = CALL.findall(lines), COMMAND.findall(lines)
    command = COMMANDS.get(page.stem, "train pretrain")
    commands += [(command, options) for options in OPTIONS.findall(lines)]
    assert len(calls) + len(commands) >= 4
    wrong = [wrong_call(name, arguments) for name, arguments in calls]
    wrong += [wrong_command(words, options) for words, options in commands]
    assert [w for w in wrong if w] == []


@pytest.mark.once
def test_a_wrong_name_is_noticed():
    assert wrong_call("dovetail_train.Trainer", "accumulate=, guard=") is None
    assert "no every=" in wrong_call("dovetail_train.Trainer", "every=")
    assert "does not exist" in wrong_call("dovetail_models.lora.undo", None)
    assert wrong_command("train pretrain", " --fsdp --estimate") is None
    assert "no --zeal" in wrong_command("train pretrain", " --fsdp --zeal")
    assert "no command" in wrong_command("train sideways", "")


@pytest.mark.thorough
def test_the_program_of_the_landing_page_runs(tmp_path, monkeypatch):
    (program,) = re.findall(
        r"```{code-cell} python\n(.*?)```", (DOCS / "index.md").read_text(), re.S
    )
    assert len(program.splitlines()) <= 15
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(program, "index.md", "exec"), names)
    assert names["result"].step == 60
    guess = math.log(names["config"].vocab_size)  # the loss of equal logits
    assert names["result"].scalars["loss"] < guess - 2


@pytest.mark.once
def test_the_landing_page_names_every_package():
    text = (DOCS / "index.md").read_text()
    for folder, member in MEMBERS.items():
        assert f"[{member.name}](packages/{folder}.md)" in text
        assert f"\npackages/{folder}\n" in text
        api = f"\npackages/api/{folder}\n" in text
        assert api or folder == workspace.META


@pytest.mark.once
def test_commands_of_installation_name_extras_that_exist():
    named = {
        *re.findall(r"jax\[([\w-]+)\]", install.platforms() + (DOCS / "install.md").read_text())
    }
    named |= {r.removeprefix("jax[")[:-1] for *_, r, _ in install.PLATFORMS if r and r[:3] == "jax"}
    assert {"cuda12", "cuda13", "tpu", "rocm7-local"} <= named
    assert named <= set(importlib.metadata.metadata("jax").get_all("Provides-Extra"))
    assert "cpu" in MEMBERS["kernels"].extras
    extra = ("tpu", "jax[tpu]")
    assert install.command(*extra, {}) == 'pip install dovetail-stack "jax[tpu]"'
    assert install.command(*extra, {"tpu": ()}) == 'pip install "dovetail-stack[tpu]"'
    assert install.command(None, None, {"tpu": ()}) == "pip install dovetail-stack"


@pytest.mark.once
def test_tables_of_versions_are_the_pins_and_the_lower_bounds():
    pins = versions.pins()
    old, new = (workspace.constraints(python)["jax"] for python in workspace.PYTHONS)
    assert f"| `jax` | {old} | {new} |" in pins
    assert f"| `dovetail-data` | {MEMBERS['data'].version} |" in pins
    assert "tqdm" not in pins  # a lower bound, not a pin
    (floor,) = (line for line in versions.floors().splitlines() if "dovetail-optim" in line)
    for dependency in MEMBERS["optim"].dependencies:
        assert f"{dependency.name} {dependency.specifier}" in floor
    assert [f"| {old} |" in line for line in rows(install.pythons())] == [False, False, True, False]


@pytest.mark.once
def test_a_changelog_has_the_fragments_above_the_releases(frame):
    package = frame / "packages/data"
    (package / "changes").mkdir()
    (package / "changes/7.feature.md").write_text("Reads faster.\n")
    (package / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (2026-01-01)\n\n- First.\n")
    title, unreleased, kind, entry, *older = filter(None, changelogs.page(package).splitlines())
    assert (title, unreleased) == ("# dovetail-data: changes", "## Unreleased")
    assert kind == "### Features"
    assert "Reads faster." in entry
    assert older == ["## 0.1.0 (2026-01-01)", "- First."]


def notebook(path: Path, *outputs: dict) -> Path:
    cells = [
        {
            "cell_type": "markdown",
            "source": ["# Mixtures\n", "\n", "Mix 1.5 corpora\n", "well. Then?"],
        },
        {"cell_type": "code", "source": [], "outputs": [{"data": data} for data in outputs]},
    ]
    path.write_text(json.dumps({"cells": cells}))
    return path


@pytest.mark.once
def test_a_card_has_title_sentence_and_the_first_picture(tmp_path):
    text = {"text/plain": "loss"}
    picture = {"image/png": base64.b64encode(PIXEL).decode()}
    file = notebook(tmp_path / "mixtures.ipynb", text, picture, {"image/png": "AAAA"})
    lines = gallery.card(file, tmp_path).splitlines()
    assert lines[0] == ":::{grid-item-card} Mixtures"
    assert ":link: /examples/notebooks/mixtures" in lines
    assert "Mix 1.5 corpora well." in lines
    assert ":img-top: /generated/notebooks/mixtures.png" in lines
    assert (tmp_path / "mixtures.png").read_bytes() == PIXEL
    plain = notebook(tmp_path / "plain.ipynb", text)
    assert "img-top" not in gallery.card(plain, tmp_path)


@pytest.mark.once
def test_a_notebook_without_a_place_is_refused(tmp_path, monkeypatch):
    for name in ("EXAMPLES", "PAGES", "FOLDER"):
        monkeypatch.setattr(gallery, name, tmp_path / name)
    (tmp_path / "EXAMPLES/notebooks").mkdir(parents=True)
    (tmp_path / "EXAMPLES/test_examples.py").touch()
    notebook(tmp_path / "EXAMPLES/notebooks/digits.ipynb")
    gallery.write()
    assert "examples/notebooks/digits\n" in (tmp_path / "FOLDER/pages.txt").read_text()
    pages = [file.name for file in (tmp_path / "PAGES").rglob("*.*")]
    assert pages == ["digits.ipynb"]
    notebook(tmp_path / "EXAMPLES/notebooks/knitting.ipynb")
    with pytest.raises(ValueError, match=r"place in the gallery.*'knitting'.*ORDER"):
        gallery.write()


@pytest.mark.once
def test_links_of_notebooks_lead_to_pages_of_the_site():
    text = (
        "[a](../../docs/meshes.md#x) [b](../../packages/data/README.md) [c](../x.py) [d](y.ipynb)"
    )
    expected = "[a](../../meshes.md#x) [b](../../packages/data.md) [c](../x.py) [d](y.ipynb)"
    assert gallery.site_links(text) == expected
    readmes = "[a](../../README.md) [b](../packages/optim) [c](https://example.org/docs/)"
    expected = "[a](../../index.md) [b](../packages/optim.md) [c](https://example.org/docs/)"
    assert gallery.site_links(readmes) == expected
