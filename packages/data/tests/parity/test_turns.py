# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Turns of the published templates against the blocks of TRL's patched ones, over TRL's files."""

import datetime
import importlib.util
import random
from pathlib import Path

import pytest

from dovetail_data import Template
from dovetail_data.encode._turns import Turns

pytestmark = pytest.mark.parity
spec = importlib.util.find_spec("trl")
if spec is None or spec.origin is None:
    pytest.skip("trl is not installed", allow_module_level=True)

TEMPLATES = Path(spec.origin).parent / "chat_templates"
PATCHED = sorted(path.name.replace("_training", "") for path in TEMPLATES.glob("*_training.jinja"))
WORDS = ["What", " is", "2 * 3", "\n", "\n\n", " ", "naïve", "日本語", "😀", "def f(x):", "\t", "."]


def conversation(seed, *, parts):
    """Two to six messages, every second time behind a system message."""
    draw = random.Random(seed)
    roles = ["system"] * (seed % 2) + ["user", "assistant"] * draw.randint(1, 3)
    texts = ["".join(draw.choices(WORDS, k=5)) + "x" + draw.choice(WORDS) for _ in roles]
    contents = [[{"type": "text", "text": text}] for text in texts] if parts else texts
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]


def template_of(name):
    source = (TEMPLATES / name).read_text(encoding="utf-8")
    return Template(source, bos="<s>", eos="</s>", now=datetime.datetime(2026, 1, 1))


def characters(spans):
    return {i for start, stop in spans for i in range(start, stop)}


@pytest.mark.parametrize("name", PATCHED)
def test_turns_are_the_blocks_without_the_generation_prompt(name):
    plain, patched = template_of(name), template_of(name.replace(".jinja", "_training.jinja"))
    same_text = 0
    for seed in range(40):
        messages = conversation(seed, parts=not plain.takes_text)
        try:
            text = plain.render(messages).text
        except ValueError:
            assert messages[0]["role"] == "system"  # Gemma refuses it
            continue
        spans = Turns(plain).spoken(messages)
        assert spans is not None
        assert plain.render_turns(messages).text == text
        theirs = patched.render(messages)
        if theirs.text != text:  # TRL's keeps reasoning that the published one drops
            continue
        same_text += 1
        ours, blocks = characters(spans), characters(theirs.spans)
        # Ours may hold white space behind the turn; theirs may hold the generation prompt.
        assert not "".join(text[i] for i in sorted(ours - blocks)).strip()
        prompt = Turns(plain)._generation_prompt()
        for start, _ in spans:
            heading = start
            while heading - 1 in blocks - ours:
                heading -= 1
            assert text[heading:start] in prompt
            blocks -= set(range(heading, start))
        assert not blocks - ours
    assert same_text >= 10 or name == "glm4moe.jinja"


@pytest.mark.parametrize("name", ["phi3.jinja", "phi3_5.jinja", "qwen3.jinja", "gemma.jinja"])
def test_families_that_were_ambiguous_have_the_blocks_of_trl(name):
    plain, patched = template_of(name), template_of(name.replace(".jinja", "_training.jinja"))
    equal = 0
    for seed in range(40):
        messages = conversation(seed, parts=False)
        if name == "gemma.jinja" and messages[0]["role"] == "system":
            continue
        theirs = patched.render(messages)
        if theirs.text == plain.render(messages).text:
            spans = Turns(plain).spoken(messages)
            assert spans is not None
            assert characters(spans) == characters(theirs.spans)
            equal += 1
    assert equal >= 10
