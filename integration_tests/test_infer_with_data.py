# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text of an engine, streamed id by id, with each kind of tokenizer of dovetail-data."""

from __future__ import annotations

import gc
import json
import random
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import tokenizers

from dovetail_data import Bytes, Pretrained, records, text, train_bpe
from dovetail_infer import Tokenizer
from dovetail_infer.text import Detokenizer, StopStrings

SOURCES = Path(sysconfig.get_paths()["stdlib"]) / "json"
WORDS = [
    "naïve ",
    "日本語",
    "😀👩‍👩‍👧",
    "e\u0301",
    "  two  spaces",
    "\n\n",
    "don't . stop",
    "\ufffd",
]
MARK = "▁"


def bpe(path: Path) -> Pretrained:
    texts = (record["text"] for record in records(text(SOURCES, pattern="*.py")))
    return train_bpe(texts, path / "tokenizer.json", vocab_size=400)


def pieces(path: Path) -> Pretrained:
    """A tokenizer as Llama 2's: words begin with a mark, and unknown characters become bytes."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{i:02X}>": 3 + i for i in range(256)}
    for token in (MARK, *"abcdefghijklmnopqrstuvwxyz.'", f"{MARK}t", f"{MARK}s"):
        vocabulary[token] = len(vocabulary)
    merges = [(MARK, "t"), (MARK, "s")]
    model = tokenizers.models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>")
    library = tokenizers.Tokenizer(model)
    library.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend(MARK), tokenizers.normalizers.Replace(" ", MARK)]
    )
    library.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace(MARK, " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    library.save(str(path / "tokenizer.json"))
    return Pretrained(path)


def words(path: Path) -> Pretrained:
    """A tokenizer as BERT's: pieces of words, and spaces that only the decoder knows."""
    vocabulary = ["[UNK]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz.'"]
    vocabulary += [f"##{letter}" for letter in vocabulary[2:]]
    numbered = {token: i for i, token in enumerate(vocabulary)}
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbered, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.decoder = tokenizers.decoders.WordPiece()
    library.add_special_tokens(["[UNK]", "[SEP]"])
    library.save(str(path / "tokenizer.json"))
    return Pretrained(path, eos="[SEP]")


MAKERS: dict[str, Callable[[Path], Tokenizer]] = {
    "bytes": lambda path: Bytes(),
    "bpe": bpe,
    "pieces": pieces,
    "words": words,
}


@pytest.fixture(scope="module", params=MAKERS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    return MAKERS[request.param](tmp_path_factory.mktemp("tokenizer"))


def streamed(tokenizer: Tokenizer, ids: Sequence[int], sizes: Sequence[int]) -> list[str]:
    detokenizer, texts, rest = Detokenizer(tokenizer), [], list(ids)
    for size in [*sizes, len(ids)]:
        texts.append(detokenizer.push(rest[:size]))
        rest = rest[size:]
    return [*texts, detokenizer.flush()]


def test_real_text_is_the_same_at_any_division(tokenizer: Tokenizer) -> None:
    content = (SOURCES / "decoder.py").read_text()[:3000]
    rng = random.Random(0)
    for sample in (content, "".join(WORDS), "".join(reversed(WORDS * 3)), " a b"):
        (encoding,) = tokenizer.encode([sample])
        ids = [int(i) for i in encoding.ids]
        whole = tokenizer.decode(ids)
        assert "".join(streamed(tokenizer, ids, [1] * len(ids))) == whole
        for _ in range(10):
            sizes = [rng.randint(0, 7) for _ in ids]
            assert "".join(streamed(tokenizer, ids, sizes)) == whole


def test_random_ids_are_the_same_at_any_division(tokenizer: Tokenizer) -> None:
    """Such is the output of a model without training."""
    rng = random.Random(1)
    for _ in range(200):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(1, 40))]
        joined = "".join(streamed(tokenizer, ids, [1] * len(ids)))
        if isinstance(tokenizer, Pretrained) and "ByteFallback" in tokenizer.content:
            # Characters of bytes that are valid with those before them stay, and nothing else.
            texts = (tokenizer.decode(ids), joined, lossy(tokenizer, ids))
            least, shown, most = (text.replace("\ufffd", "") for text in texts)
            assert is_within(least, shown)
            assert is_within(shown, most)
        else:
            assert joined == tokenizer.decode(ids)


def is_within(text: str, other: str) -> bool:
    """Returns whether `other` has the characters of `text` in their order."""
    characters = iter(other)
    return all(c in characters for c in text)


def lossy(tokenizer: Pretrained, ids: Sequence[int]) -> str:
    """The text of `pieces`, with valid characters of bytes beside invalid ones."""
    names = {i: token for token, i in json.loads(tokenizer.content)["model"]["vocab"].items()}
    tokens = [names[i] for i in ids if i >= 3]
    content = b"".join(
        bytes([int(t[3:5], 16)]) if t.startswith("<0x") else t.replace(MARK, " ").encode()
        for t in tokens
    )
    return content.decode(errors="replace").removeprefix(" ")


def test_a_character_before_an_invalid_byte_stays(tmp_path: Path) -> None:
    tokenizer = pieces(tmp_path)
    vocabulary = json.loads(tokenizer.content)["model"]["vocab"]
    ids = [vocabulary[f"<0x{byte:02X}>"] for byte in "é€".encode() + b"\xff"]
    ids += [vocabulary[letter] for letter in "ab"]
    assert tokenizer.decode(ids) == "\ufffd" * 6 + "ab"
    assert "".join(streamed(tokenizer, ids, [1] * 8)) == "é€\ufffdab"


def test_a_stop_string_over_tokens_is_never_shown(tokenizer: Tokenizer) -> None:
    (encoding,) = tokenizer.encode(["the first sentence. the second one"])
    ids = [int(i) for i in encoding.ids]
    whole = tokenizer.decode(ids)
    stop = whole[12:22]
    detokenizer, search, shown = Detokenizer(tokenizer), StopStrings([stop, "never"]), ""
    for token in ids:
        new, match = search.push(detokenizer.push([token]))
        shown += new
        assert whole[:12].startswith(shown)
        if match:
            break
    assert (shown, match) == (whole[:12], stop)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: one looks through all that the suite holds."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_the_time_of_a_token_does_not_grow(tokenizer: Tokenizer) -> None:
    (encoding,) = tokenizer.encode([(SOURCES / "decoder.py").read_text()])
    ids = ([int(i) for i in encoding.ids] * 10)[:10_000]

    def seconds(count: int) -> float:
        start = time.process_time()
        streamed(tokenizer, ids[:count], [1] * count)
        return time.process_time() - start

    # 10 times the ids; a quadratic cost would be 100 times. Other processes slow down some runs.
    many = min(seconds(10_000) for _ in range(3))
    assert many < 40 * max(seconds(1_000), seconds(1_000))
