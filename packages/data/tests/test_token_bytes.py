# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from dovetail_data import Bytes, Pretrained, token_bytes, vocabulary_bytes

TEXTS = ["", "a", "naïve café — 日本語", "\U0001f469\u200d\U0001f4bb\r\n\x00", "<|eos|> is text"]


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request, bpe):
    return Bytes() if request.param == "bytes" else bpe


def test_bytes_per_id_add_up_to_the_text(tokenizer):
    counts = token_bytes(tokenizer)
    assert counts.shape == (tokenizer.vocab_size,)
    assert counts.dtype == np.int32
    for text, encoding in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert counts[encoding.ids].sum() == len(text.encode())
    assert counts[tokenizer.bos_id] == counts[tokenizer.eos_id] == 0


SPECIALS = ["<unk>", "<s>", "</s>"]
CORPUS = [
    "to be, or not to be: that is the question",
    "naïve café, 日本語 and more",
    "don't  do it",
]
LETTERS = sorted({letter for text in CORPUS for letter in text if letter != " "})
BYTE_TOKENS = [f"<0x{value:02X}>" for value in range(256)]


def trained(model, decoder, *, pre_tokenizer=None, normalizer=None, trainer=trainers.BpeTrainer):
    library = Tokenizer(model)
    library.decoder = decoder
    if pre_tokenizer is not None:
        library.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        library.normalizer = normalizer
    options = {"special_tokens": SPECIALS, "show_progress": False, "vocab_size": 400}
    library.train_from_iterator(CORPUS * 9, trainer(**options))
    return library


def byte_level():
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = functools.partial(
        trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    library = trained(models.BPE(), decoders.ByteLevel(), pre_tokenizer=levels, trainer=trainer)
    library.add_tokens([AddedToken("<té>"), AddedToken("   ", normalized=False)])
    return library


def with_fallback(model, **options):
    """Returns a BPE tokenizer like Llama 2's: ▁ for a space, and a token for each byte."""
    library = trained(model, decoders.Fuse(), **options)
    content = json.loads(library.to_str())
    vocabulary = content["model"]["vocab"]
    for token in BYTE_TOKENS:
        vocabulary[token] = len(vocabulary)
    content["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    content["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return Tokenizer.from_str(json.dumps(content))


def byte_fallback():
    prepend = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return with_fallback(models.BPE(), normalizer=normalizers.Sequence(prepend))


def gemma():
    return with_fallback(models.BPE(), normalizer=normalizers.Replace(" ", "▁"))


def metaspace(scheme):
    space = {"replacement": "▁", "prepend_scheme": scheme}
    return trained(
        models.Unigram(),
        decoders.Metaspace(**space),
        pre_tokenizer=pre_tokenizers.Metaspace(**space),
        trainer=functools.partial(trainers.UnigramTrainer, unk_token="<unk>"),
    )


def word_piece():
    return trained(
        models.WordPiece(unk_token="<unk>"),
        decoders.WordPiece(cleanup=False),
        pre_tokenizer=pre_tokenizers.WhitespaceSplit(),
        trainer=trainers.WordPieceTrainer,
    )


ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")) | st.text(
    " \nte<>é日\U0001f469"
)
WORDS = sorted({word for text in CORPUS for word in text.split()})
KNOWN = st.lists(st.sampled_from(WORDS)).map(" ".join)  # other words may be unknown
SPACED = st.text([*LETTERS, " "]).filter(lambda text: not text.startswith(" "))
# The text behind the joined bytes: with a space before it or not.
KINDS = {
    "byte-level": (byte_level, ANY, lambda text: text),
    "byte-fallback": (byte_fallback, ANY, lambda text: text and f" {text}"),
    "gemma": (gemma, ANY, lambda text: text),
    "metaspace": (lambda: metaspace("always"), SPACED, lambda text: text and f" {text}"),
    "metaspace-never": (lambda: metaspace("never"), SPACED, lambda text: text),
    "word-piece": (word_piece, KNOWN, lambda text: text and f" {text}"),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    @functools.cache
    def make(kind):
        path = tmp_path_factory.mktemp(kind) / "tokenizer.json"
        KINDS[kind][0]().save(str(path))
        return Pretrained(path)

    return make


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_joined_bytes_of_a_text_are_its_utf8(kind, built, data):
    tokenizer = built(kind)
    _, texts, written = KINDS[kind]
    text = data.draw(texts)
    pieces = _bytes_of(tokenizer)
    joined = b"".join(pieces[i] for i in tokenizer.encode([text])[0].ids.tolist())
    assert joined == written(text).encode()


@functools.cache
def _bytes_of(tokenizer):
    return vocabulary_bytes(tokenizer)


@given(text=st.text())
def test_joined_bytes_of_the_tokenizer_of_bytes(text):
    pieces = _bytes_of(Bytes())
    assert b"".join(pieces[i] for i in Bytes().encode([text])[0].ids.tolist()) == text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_each_id_decodes_to_its_bytes_behind_another(kind, built):
    tokenizer = built(kind)
    library = Tokenizer.from_str(tokenizer.content)
    vocabulary = library.get_vocab()
    first = vocabulary["t"]
    pieces = vocabulary_bytes(tokenizer)
    assert len(pieces) == tokenizer.vocab_size
    assert [pieces[vocabulary[special]] for special in SPECIALS] == [None] * 3
    before = library.decode([first])
    for token, i in vocabulary.items():
        if pieces[i] is None or token == "<té>":  # the decoder reads é as the byte 0xe9
            continue
        decoded = library.decode([first, i])
        assert decoded == before + pieces[i].decode(errors="replace"), token
    counts = token_bytes(tokenizer)
    assert counts.tolist() == [len(piece or b"") for piece in pieces]


def test_an_added_token_has_the_bytes_of_its_letters(built):
    tokenizer = built("byte-level")
    pieces = vocabulary_bytes(tokenizer)
    (i,) = tokenizer.encode(["<té>"])[0].ids.tolist()
    assert pieces[i] == "<té>".encode()


def test_words_are_cleaned_up_as_the_library_does(tmp_path):
    words = [".", "?", "!", ",", "'", "n't", "'m", "'s", "'ve", "'re", "do not", "it's", "##ing"]
    vocabulary = {word: i for i, word in enumerate(["t", "</s>", "<unk>", *words])}
    library = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    library.decoder = decoders.WordPiece(cleanup=True)
    library.save(str(tmp_path / "tokenizer.json"))
    pieces = vocabulary_bytes(Pretrained(tmp_path))
    assert pieces[:3] == [b" t", None, None]
    for word in words:
        i = vocabulary[word]
        assert library.decode([0, i]) == "t" + pieces[i].decode(), word


def _bpe(**options):
    return models.BPE({"a": 0, "</s>": 1}, [], **options)


STRIP = decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()])
UNKNOWN = {
    "decoder=None": (models.WordLevel({"red": 0, "</s>": 2}, unk_token="red"), None),
    "decoder='BPEDecoder'": (_bpe(), decoders.BPEDecoder()),
    "decoder='CTC'": (_bpe(), decoders.CTC()),
    "decoder='Strip'": (_bpe(), STRIP),
    "decoder='Replace'": (_bpe(), decoders.Replace(Regex("▁"), " ")),
    "decoder=['ByteLevel', 'ByteFallback']": (
        _bpe(),
        decoders.Sequence([decoders.ByteLevel(), decoders.ByteFallback()]),
    ),
    "model.end_of_word_suffix='</w>'": (_bpe(end_of_word_suffix="</w>"), decoders.ByteLevel()),
}


@pytest.mark.parametrize("received", UNKNOWN)
@pytest.mark.parametrize("function", [token_bytes, vocabulary_bytes])
def test_bytes_of_other_decoders_are_refused_by_name(received, function, tmp_path):
    model, decoder = UNKNOWN[received]
    library = Tokenizer(model)
    if decoder is not None:
        library.decoder = decoder
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="must give each token its own bytes") as error:
        function(Pretrained(tmp_path))
    assert f"got {received}. Make the bytes" in str(error.value)
