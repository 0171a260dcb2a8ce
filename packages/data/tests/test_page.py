# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The page: well-formed, complete, and harmless whatever the rows hold."""

import html.parser
import re

import pytest

from dovetail_data import Bytes, Text, pad, pairs, prompts, show, text, write
from dovetail_data.encode.chat import Chat
from dovetail_data.encode.preference import Preference
from dovetail_data.encode.prompt import Prompt
from dovetail_data.tokenizing.template import Template

# What the assistant says and the end of its turn are learnt.
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


HOSTILE = "\x1b]0;owned\x07<script>alert('x')</script>\u202e&amp;\r\n\x9b2J"


def turns(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


def template(**options):
    return Template(TEMPLATE, bos="", eos="<|eos|>", **options)


@pytest.fixture
def chat(written):
    records = [{"messages": turns("Hé?", "é!")}, {"messages": turns("a", "b", "c", "d")}]
    return written(records, Chat(Bytes(), template=template()))


ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "section", "div"),
    *("article", "pre", "span", "p", "img"),
}


class Page(html.parser.HTMLParser):
    """What a page is made of: tags with attributes, the text of each span with its title."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.open, self.spans, self.texts = [], [], [], []
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "span":
            self.spans.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] == "span":
            attrs, before = self.spans[-1]
            self.spans[-1] = (attrs, before + data)

    def check_harmless(self):
        assert {tag for tag, _ in self.tags} <= ALLOWED
        for tag, attrs in self.tags:
            assert set(attrs) <= {
                *("lang", "charset", "http-equiv", "content", "class", "title", "alt", "src")
            }
            assert tag == "img" or "src" not in attrs
            assert attrs.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        policy = dict(self.tags)["meta"]["content"]
        assert policy.startswith("default-src 'none';")
        assert "script" not in policy


def test_a_page_has_the_pieces_with_ids_positions_and_masks(chat):
    page = Page(show(pad(chat, length=40), [0]).html(title="chats"))
    page.check_harmless()
    place = chat.source(0)[0]
    assert "chats" in page.texts
    assert f"document 0 (record 0 of {place}), targets 0 to 23" in page.texts
    assert "empty: 16 of 40 slots" in page.texts
    spans = page.spans[3:]  # behind the legend
    assert "".join(text for _, text in spans) == "[user]Hé?[assistant]é!<|eos|>"
    assert spans[0] == ({"title": "id 91, position 0, mask 0"}, "[")
    assert spans[7] == ({"title": "ids 195 169, position 7, mask 0"}, "é")
    assert spans[-3:] == [
        ({"class": "learnt", "title": "ids 195 169, position 21, mask 1"}, "é"),
        ({"class": "learnt", "title": "id 33, position 23, mask 1"}, "!"),
        ({"class": "learnt special", "title": "id 257, position 24, mask 1"}, "<|eos|>"),
    ]


def test_hostile_text_stays_text(tmp_path):
    name = "<img src=x onerror=alert(1)>\x1b[2J\n.txt"
    (tmp_path / name).write_bytes(HOSTILE.encode())
    corpus = write(text(tmp_path, pattern="*"), tmp_path / "out", encoder=Text(Bytes()))
    shown = show(pad(corpus, length=99), [0])
    safe = "␛]0;owned␇<script>alert('x')</script>⟨U+202E⟩&amp;␍↵\n    ⟨U+009B⟩2J"
    assert f"⟦{safe}⟨<|eos|>⟩⟧" in shown.text()
    assert "(record 0 of <img src=x onerror=alert(1)>␛[2J↵.txt)" in shown.text()
    assert "\x1b" not in shown.text()
    escapes = re.findall(r"\x1b[^m]*.", shown.text(color=True))
    assert set(escapes) <= {"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[2;7m", "\x1b[32;7m"}

    content = shown.html(title="</title><script>alert(2)</script>\x1b")
    page = Page(content)
    page.check_harmless()
    read = "".join(text for _, text in page.spans[4:-1])
    assert read == safe.replace("    ", "")
    assert "</title><script>alert(2)</script>␛" in page.texts
    assert "<script" not in content
    assert "<img" not in content


def test_hostile_extra_stays_text(written):
    corpus = written([{"prompt": "x", HOSTILE: HOSTILE}], Prompt(Bytes()))
    shown = show(prompts(corpus, length=4), [0])
    assert not set("\x1b\x07\x9b\u202e\r") & set(shown.text())
    page = Page(shown.html())
    page.check_harmless()
    assert any("<script>alert('x')</script>⟨U+202E⟩&amp;" in text for text in page.texts)


def test_sides_of_a_pair_stand_beside_each_other(written, chat):
    corpus = written([{"prompt": "2", "chosen": "4", "rejected": "5"}], Preference(Bytes()))
    kinds = [
        [attrs["class"] for tag, attrs in Page(shown.html()).tags if tag == "div"]
        for shown in (show(pairs(corpus, length=7), [0]), show(pad(chat, length=40), [0]))
    ]
    assert kinds == [["passages"], ["passages one"]]
