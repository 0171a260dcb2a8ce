# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows as they are shown, against what was written out by hand."""

import base64
import dataclasses
import html
import io
import json
import re

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_data import (
    Bytes,
    Corpus,
    Image,
    Text,
    images,
    pad,
    pairs,
    prompts,
    show,
    text,
    write,
)
from dovetail_data.encode.chat import Chat
from dovetail_data.encode.preference import Preference
from dovetail_data.encode.prompt import Prompt
from dovetail_data.mixture.mix import mix
from dovetail_data.sources.parquet import parquet
from dovetail_data.tokenizing.template import Template

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def turns(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


@pytest.fixture
def plain(tmp_path):
    (tmp_path / "a.txt").write_text("héllo\nyou")
    (tmp_path / "b.txt").write_text("日")
    return write(text(tmp_path), tmp_path / "o\x1but", encoder=Text(Bytes()))


def template(**options):
    return Template(TEMPLATE, bos="", eos="<|eos|>", **options)


@pytest.fixture
def chat(written):
    records = [{"messages": turns("Hé?", "é!")}, {"messages": turns("a", "b", "c", "d")}]
    return written(records, Chat(Bytes(), template=template()))


def test_a_notebook_shows_the_page_in_a_frame(plain):
    shown = show(pad(plain, length=13), [0])
    frame = shown._repr_html_()
    assert html.unescape(frame.partition('srcdoc="')[2]).removesuffix('"></iframe>') == shown.html()


def test_text(plain):
    # 10 bytes of text, bos and eos: 11 pairs, each of whose targets is learnt.
    shown = show(pad(plain, length=13), [0, 1])
    assert repr(shown) == "Shown(2 rows; print it)"
    assert str(shown) == (
        "row 0: 11 of 13 slots filled, 11 learnt\n"
        "  document 0 (record 0 of a.txt), targets 0 to 10\n"
        "    ⟨<|bos|>⟩⟦héllo↵\n"
        "    you⟨<|eos|>⟩⟧\n"
        "  empty: 2 of 13 slots\n"
        "\n"
        "row 1: 4 of 13 slots filled, 4 learnt\n"
        "  document 1 (record 0 of b.txt), targets 0 to 3\n"
        "    ⟨<|bos|>⟩⟦日⟨<|eos|>⟩⟧\n"
        "  empty: 9 of 13 slots"
    )


def test_a_chat_with_borders(chat):
    # "[user]Hé?[assistant]é!" and eos: 6 + 4 + 11 + 3 + 1 ids; é and ! and eos are learnt.
    shown = show(pad(chat, length=39), [0]).text(borders=True)
    place = chat.source(0)[0]
    assert shown == (
        "row 0: 24 of 39 slots filled, 4 learnt\n"
        f"  document 0 (record 0 of {place}), targets 0 to 23\n"
        "    [│u│s│e│r│]│H│é│?│[│a│s│s│i│s│t│a│n│t│]│⟦é│!│⟨<|eos|>⟩⟧\n"
        "  empty: 15 of 39 slots"
    )


def test_a_chat_in_color(chat):
    # Twice 6 + 1 + 11 + 1 + 1 ids.
    shown = show(pad(chat, length=40), [1]).text(color=True)
    place = chat.source(1)[0]
    assert shown == (
        "\x1b[1mrow 1: 39 of 40 slots filled, 4 learnt\x1b[0m\n"
        f"  \x1b[1mdocument 1 (record 1 of {place}), targets 0 to 38\x1b[0m\n"
        "    \x1b[2m[user]a[assistant]\x1b[0m\x1b[32mb\x1b[0m\x1b[32;7m⟨<|eos|>⟩\x1b[0m"
        "\x1b[2m[user]c[assistant]\x1b[0m\x1b[32md\x1b[0m\x1b[32;7m⟨<|eos|>⟩\x1b[0m\n"
        "  empty: 1 of 40 slots"
    )


def test_color_ends_with_each_line(plain):
    shown = show(pad(plain, length=13), [0]).text(color=True, borders=True)
    assert (
        "\x1b[32mh│é│l│l│o│↵\x1b[0m\n    \x1b[32m│y│o│u\x1b[0m│\x1b[32;7m⟨<|eos|>⟩\x1b[0m" in shown
    )


def test_a_pair(written):
    corpus = written([{"prompt": "2+2", "chosen": "4", "rejected": "no\n"}], Preference(Bytes()))
    place = corpus.source(0)[0]
    (row,) = show(pairs(corpus, length=7), [0]).rows
    assert show(pairs(corpus, length=7), [0]).text() == (
        "row 0: 12 of 14 slots filled, 6 learnt\n"
        f"  chosen: document 0 (record 0 of {place})\n"
        "    ⟨<|bos|>⟩2+2⟦4⟨<|eos|>⟩⟧\n"
        f"  rejected: document 0 (record 0 of {place})\n"
        "    ⟨<|bos|>⟩2+2⟦no↵\n"
        "    ⟨<|eos|>⟩⟧\n"
        "  empty: 2 of 14 slots"
    )
    assert row.side_by_side


def test_a_prompt_with_the_rest_of_its_record(written):
    records = [{"prompt": "a", "answer": 1}, {"prompt": "bc", "x\u202ey": "\x7f\n", "answer": [2]}]
    corpus = written(records, Prompt(Bytes()))
    place = corpus.source(1)[0]
    assert show(prompts(corpus, length=4), [1]).text() == (
        "row 1: 3 of 4 slots filled, 0 learnt\n"
        f"  document 1 (record 1 of {place})\n"
        "    ⟨<|bos|>⟩bc\n"
        "  extra: {\n"
        '    "answer": [\n'
        "      2\n"
        "    ],\n"
        '    "x⟨U+202E⟩y": "␡\\n"\n'
        "  }\n"
        "  empty: 1 of 4 slots"
    )


def test_a_mixture_finds_the_tokenizer_and_the_record_of_each(written, bpe):
    parts = {
        "b": written([{"prompt": "zwei", "n": 2}], Prompt(bpe)),
        "a": written([{"prompt": "eins", "n": 1}, {"prompt": "un", "n": 0}], Prompt(Bytes())),
    }
    rows = {name: prompts(corpus, length=9) for name, corpus in parts.items()}
    mixture = mix({"inner": mix(rows, weights={"a": 1.0, "b": 1.0})}, weights={"inner": 1.0})
    shown = show(mixture.map(lambda row, rng: row), [2, 1])
    read = ["".join(piece.text for piece in row.passages[0].pieces) for row in shown.rows]
    assert read == ["<|bos|>zwei", "<|bos|>un"]
    assert [json.loads(row.notes["extra"]) for row in shown.rows] == [{"n": 2}, {"n": 0}]
    assert [row.passages[0].title.split(",")[0] for row in shown.rows] == ["inner/b", "inner/a"]
    assert [row.row for row in shown.rows] == [2, 1]


def damage(corpus, content):
    """Changes a bit of the only place where `content` lies in the corpus's shard."""
    (path,) = corpus.directory.glob("*.array_record")
    flipped = bytearray(path.read_bytes())
    assert flipped.count(content) == 1
    flipped[flipped.index(content)] ^= 1
    path.write_bytes(flipped)
    return Corpus(corpus.directory)


def test_a_corrupt_document_is_told_in_its_place(plain):
    corpus = damage(plain, np.array([*"日".encode()], "<u2").tobytes())
    (good, bad) = show(pad(corpus, length=13), [0, 1]).rows
    assert [piece.text for piece in good.passages[0].pieces[1:6]] == ["h", "é", "l", "l", "o"]
    assert bad.passages[0].pieces == ()
    assert bad.passages[0].error.startswith(
        "corrupt: its 10 of 10 bytes do not have their checksum"
    )
    assert bad.passages[0].error.endswith("00000.array_record")
    shown = show(pad(corpus, length=13), [1])
    assert "\n    corrupt: its 10 of 10 bytes" in shown.text()
    assert "/o␛ut/00000.array_record" in shown.text()
    assert "\n    \x1b[31mcorrupt: its 10 of 10 bytes" in shown.text(color=True)
    assert '<p class="error">corrupt: its 10 of 10 bytes' in shown.html()


def test_a_corrupt_prompt_and_a_corrupt_image(written, pictures):
    prompt = damage(written([{"prompt": "bc", "n": 1}], Prompt(Bytes())), b'{"n":1}')
    (row,) = show(prompts(prompt, length=4), [0]).rows
    assert row.passages[0].error.startswith("corrupt: ")
    assert row.notes == {"empty": "4 of 4 slots"}
    end = pictures[0]["image"].tobytes()[-8:]
    image = damage(pictures, end + np.array(7, "<i4").tobytes())
    (row,) = show(images(image), [0]).rows
    assert row.passages[0].error.startswith("corrupt: ")
    assert (row.png, row.notes) == (None, {})


def test_a_full_row_has_no_note(chat):
    (row,) = show(pad(chat, length=39), [1]).rows
    assert (row.summary, row.notes) == ("39 of 39 slots filled, 4 learnt", {})


def test_a_segment_that_map_took_out(plain):
    def empty(row, rng):
        return {name: np.zeros_like(array) for name, array in row.items()}

    (row,) = show(pad(plain, length=13).map(empty), [0]).rows
    assert row.passages[0].error == "not in the row: the function of map took it out"
    assert row.summary == "0 of 13 slots filled, 0 learnt"


def test_another_tokenizer_and_none(plain, written, corpus_of):
    class Hex:
        vocab_size, bos_id, eos_id, fingerprint = 258, 256, 257, "hex"

        def encode(self, texts):
            raise AssertionError("not used")

        def decode(self, ids):
            return "".join(f"{token:02x}" for token in ids if token < 256)

    (row,) = show(pad(plain, length=13), [1], tokenizer=Hex()).rows
    assert [piece.text for piece in row.passages[0].pieces] == ["bos", "e6", "97", "a5", "eos"]
    with pytest.raises(ValueError, match=r"must keep its tokenizer .* Decode with your own"):
        show(pad(corpus_of([3]), length=5), [0])


def test_rows_of_the_users_own_need_a_tokenizer(plain):
    class Mine(type(pad(plain, length=13)).__mro__[1]):
        length = 13

        def __len__(self):
            return 1

        def batch(self, rows, *, keys=None, corrupt=None):
            return pad(plain, length=13).batch(rows)

        def explain(self, row):
            return pad(plain, length=13).explain(row)

        def identity(self, place):
            raise AssertionError("not used")

    with pytest.raises(TypeError, match=r"got Mine\. Pass show\(tokenizer=\.\.\.\)"):
        show(Mine(), [0])
    assert show(Mine(), [0], tokenizer=Bytes()).text() == show(pad(plain, length=13), [0]).text()


PIXELS = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)


@pytest.fixture
def pictures(tmp_path):
    def png(pixels):
        buffer = io.BytesIO()
        PIL.Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue()

    table = {"image": [png(PIXELS), png(PIXELS[:2])], "label": [7, 4]}
    pq.write_table(pa.table(table), tmp_path / "in.parquet")
    return write(parquet(tmp_path / "in.parquet"), tmp_path / "out", encoder=Image())


def decoded(png):
    return np.asarray(PIL.Image.open(io.BytesIO(png)))


def test_images_of_several_sizes(pictures):
    shown = show(images(pictures), [0, 1])
    place = pictures.source(0)[0]
    assert shown.text() == (
        "row 0: image uint8[3, 5, 3], label 7\n"
        f"  document 0 (record 0 of {place})\n"
        "\n"
        "row 1: image uint8[2, 5, 3], label 4\n"
        f"  document 1 (record 1 of {place})"
    )
    assert decoded(shown.rows[0].png).tolist() == PIXELS.tolist()
    shown_images = re.findall(
        r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)">', shown.html()
    )
    assert [alt for alt, _ in shown_images] == [row.summary for row in shown.rows]
    assert decoded(base64.b64decode(shown_images[1][1])).tolist() == PIXELS[:2].tolist()


def test_images_as_a_transform_leaves_them(pictures):
    def scaled(pixels, rng):
        return pixels[:, :, 0].astype(np.float32) / 255 - 0.5

    (row,) = show(images(pictures, transform=scaled), [0]).rows
    assert row.summary == "image float32[3, 5], label 7"
    red = PIXELS[:, :, 0].astype(np.float64)
    low, high = red.min() / 255 - 0.5, red.max() / 255 - 0.5
    assert row.notes["picture"] == f"pixels from {low:g} to {high:g} shown from black to white"
    expected = (red - red.min()) / (red.max() - red.min()) * 255
    assert np.abs(decoded(row.png) - expected).max() <= 0.5 + 1e-3  # rounded to a grey
    (grey,) = show(images(pictures, mode="L"), [0]).rows
    assert decoded(grey.png).shape == (3, 5)


@pytest.mark.parametrize(
    "transform, told",
    [
        (lambda pixels, rng: pixels.reshape(-1), "none: the shape is not that of one"),
        (lambda pixels, rng: np.full((2, 2), np.nan), "none: pixels from nan to nan"),
    ],
)
def test_what_is_no_picture(pictures, transform, told):
    (row,) = show(images(pictures, transform=transform), [0]).rows
    assert row.png is None
    assert row.notes["picture"] == told


def test_a_flat_picture(pictures):
    rows = images(pictures, transform=lambda pixels, rng: np.full((2, 2), 3.0))
    assert decoded(show(rows, [0]).rows[0].png).tolist() == [[0, 0], [0, 0]]


def test_it_is_data(chat):
    data = dataclasses.asdict(show(pad(chat, length=40), [0]))
    assert json.loads(json.dumps(data))["rows"][0]["passages"][0]["pieces"][7] == {
        "ids": [195, 169],
        "text": "é",
        "position": 7,
        "mask": 0.0,
        "special": False,
    }
