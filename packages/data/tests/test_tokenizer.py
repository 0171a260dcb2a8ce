# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import Bytes, Pretrained
from dovetail_data.corpus.tokenizer_files import save_tokenizer
from dovetail_data.tokenizing import tokenizer as tokenizer_module

TEXTS = ["", "a", "naïve café — 日本語", "\U0001f469\u200d\U0001f4bb\r\n\x00", "<|eos|> is text"]


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request, bpe):
    return Bytes() if request.param == "bytes" else bpe


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer, text):
    (encoding,) = tokenizer.encode([text])
    assert encoding.ids.dtype == np.int32
    assert tokenizer.decode(encoding.ids) == text


@given(st.lists(st.text(), max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back_from_bpe(bpe, texts):
    assert [bpe.decode(encoding.ids) for encoding in bpe.encode(texts)] == texts


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back_from_bytes(text):
    (encoding,) = Bytes().encode([text])
    assert bytes(encoding.ids.tolist()) == text.encode()
    assert Bytes().decode(encoding.ids) == text


@given(st.text())
@settings(max_examples=60, deadline=None)
def test_spans_of_bytes_are_the_characters_they_spell(text):
    (encoding,) = Bytes().encode([text])
    expected = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
    assert encoding.spans.dtype == np.int32
    np.testing.assert_array_equal(encoding.spans, np.array(expected).reshape(-1, 2))


def test_spans_of_ascii_bpe_cover_the_text_in_order(bpe):
    text = "def read_all(path):\n    return path.read_text()"
    (encoding,) = bpe.encode([text])
    assert encoding.spans.dtype == np.int32
    assert [text[start:stop] for start, stop in encoding.spans.tolist()] == [
        bpe.decode([i]) for i in encoding.ids.tolist()
    ]


def test_bpe_ids_are_those_of_the_library(bpe, tmp_path):
    (tmp_path / "tokenizer.json").write_text(bpe.content)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = [text for text in TEXTS if "<|" not in text] + [Path(json.__file__).read_text()]
    for text, encoding in zip(texts, bpe.encode(texts), strict=True):
        assert encoding.ids.tolist() == library.encode(text, add_special_tokens=False).ids


def test_text_never_yields_a_special_id(tokenizer):
    (encoding,) = tokenizer.encode(["<|bos|>a<|eos|>b"])
    assert not {tokenizer.bos_id, tokenizer.eos_id} & set(encoding.ids.tolist())


def test_special_ids_decode_to_nothing(tokenizer):
    (encoding,) = tokenizer.encode(["é"])
    ids = [tokenizer.bos_id, *encoding.ids.tolist(), tokenizer.eos_id]
    assert tokenizer.decode(ids) == "é"
    named = tokenizer.decode_with_specials(ids)
    assert len(named) > len("é")
    assert tokenizer.encode_with_specials([named])[0].ids.tolist() == ids


def test_special_tokens_of_a_template_are_read_where_they_stand(tokenizer):
    (encoding,) = tokenizer.encode_with_specials(["<|bos|> é<|eos|><|eos|>b<|x|>"])
    ids, spans = encoding.ids.tolist(), encoding.spans.tolist()
    assert encoding.ids.dtype == encoding.spans.dtype == np.int32
    assert [spans[i] for i, token in enumerate(ids) if token == tokenizer.bos_id] == [[0, 7]]
    assert [spans[i] for i, token in enumerate(ids) if token == tokenizer.eos_id] == [
        [9, 16],
        [16, 23],
    ]
    assert tokenizer.decode(encoding.ids) == " éb<|x|>"
    covered = {i for start, stop in spans for i in range(start, stop)}
    assert covered == set(range(29))


@pytest.mark.thorough
@given(st.lists(st.sampled_from(["<|bos|>", "<|eos|>", "<|", "é", " a", "日本", "\n"])))
@settings(max_examples=80, deadline=None)
def test_ids_with_specials_are_those_of_the_library(bpe, pieces):
    library = tokenizers.Tokenizer.from_str(bpe.content)
    text = "".join(pieces)
    expected = library.encode(text, add_special_tokens=False)
    (encoding,) = bpe.encode_with_specials([text])
    assert encoding.ids.tolist() == expected.ids
    np.testing.assert_array_equal(encoding.spans, np.array(expected.offsets).reshape(-1, 2))


def test_added_tokens_of_every_kind_are_read_as_by_the_library(tmp_path):
    vocabulary = {"red": 0, "blue": 1, "<unk>": 2, "far": 90}  # with a gap
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    token = tokenizers.AddedToken
    library.add_tokens([token("<think>", normalized=False), token("blue", single_word=True)])
    library.add_special_tokens([token("<s>", lstrip=True), token("<e>", rstrip=True), "far"])
    library.add_tokens(["late"])
    content = json.loads(library.to_str())
    content["added_tokens"].reverse()  # by hand, not by id
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    read, whole = (
        Pretrained(tmp_path, eos="<e>"),
        tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")),
    )
    for text in ("RED <s><e>  blue bluer far<think>late FAR", "<E> <S> Late", "red<s>blue"):
        expected = whole.encode(text, add_special_tokens=False)
        assert read.encode_with_specials([text])[0].ids.tolist() == expected.ids
    specials = {
        token.content for token in whole.get_added_tokens_decoder().values() if token.special
    }
    for text in ("red <s>", "<e>", "far", "late"):
        assert (read.find_special(text) is not None) == any(name in text for name in specials)


@pytest.mark.thorough
@given(st.lists(st.sampled_from(["<|bos|>", "<|eos|>", "<|", "é", " a", "日本", "\n"])))
@settings(max_examples=80, deadline=None)
def test_bytes_between_specials_are_those_of_the_text(pieces):
    (encoding,) = Bytes().encode_with_specials(["".join(pieces)])
    ids = {"<|bos|>": [256], "<|eos|>": [257]}
    assert encoding.ids.tolist() == [i for piece in pieces for i in ids.get(piece, piece.encode())]
    starts = np.cumsum([0, *(len(piece) for piece in pieces)]).tolist()
    expected = []
    for piece, start in zip(pieces, starts, strict=False):
        characters = [(start, start + len(piece))]
        if piece not in ids:
            characters = [
                (start + i, start + i + 1) for i, c in enumerate(piece) for _ in c.encode()
            ]
        expected += characters
    np.testing.assert_array_equal(encoding.spans, np.array(expected).reshape(-1, 2))


def test_a_special_token_in_text_is_found(tokenizer):
    assert tokenizer.find_special("a<|eos|>b<|bos|>") == "<|eos|>"
    assert tokenizer.find_special("a<|EOS|>b<|eos |>") is None
    assert tokenizer.find_special("") is None


def test_the_space_that_a_token_begins_with_is_in_its_span(bpe, tmp_path):
    content = json.loads(bpe.content)
    content["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Pretrained(tmp_path)
    text = "def import return"
    for encoding in (*tokenizer.encode([text]), *tokenizer.encode_with_specials([text])):
        covered = [i for start, stop in encoding.spans.tolist() for i in range(start, stop)]
        assert covered == list(range(len(text)))


def lower_case(path, **added):
    """A tokenizer that reads <s> in what had been <S> if the token is matched in lower case."""
    vocabulary = {"red": 0, "blue": 1, "<unk>": 2}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.add_special_tokens(["<unk>", tokenizers.AddedToken("<s>", special=True, **added)])
    library.save(str(path / "tokenizer.json"))
    return Pretrained(path, eos="<s>")


def test_a_special_token_in_disguise_is_found(tmp_path):
    tokenizer = lower_case(tmp_path, normalized=True)
    assert tokenizer.encode_with_specials(["RED<S>"])[0].ids.tolist() == [0, tokenizer.eos_id]
    assert tokenizer.find_special("RED<S>") == "<S>"
    assert tokenizer.find_special("RED<s>") == "<s>"
    assert tokenizer.find_special("RED green") is None  # an unknown word is a special id always


def test_a_special_token_that_is_matched_as_written_has_no_disguise(tmp_path):
    tokenizer = lower_case(tmp_path, normalized=False)
    assert tokenizer.eos_id not in tokenizer.encode_with_specials(["RED<S>"])[0].ids
    assert tokenizer.find_special("RED<S>") is None


def test_of_two_special_tokens_the_longer_is_found(tmp_path):
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    library.add_special_tokens(["<s>", "<s>x", "</s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert Pretrained(tmp_path).find_special("b<s>x") == "<s>x"


def test_half_a_character_decodes_to_the_replacement(tokenizer):
    (encoding,) = tokenizer.encode(["\U0001f600"])
    assert tokenizer.decode(encoding.ids[:1]) == "\ufffd"


def test_a_lone_surrogate_is_an_error(tokenizer):
    with pytest.raises(ValueError, match=r"without lone surrogates: got '\\ud800' at.*2.*Clean it"):
        tokenizer.encode(["ok", "ab\ud800"])
    with pytest.raises(ValueError, match=r"without lone surrogates: got '\\ud800' at.*2.*Clean it"):
        tokenizer.encode_with_specials(["ok", "ab\ud800"])


def test_a_copy_in_another_process_encodes_alike(bpe):
    texts = [*TEXTS, "<|eos|>"]
    bpe.encode(texts)
    copy = pickle.loads(pickle.dumps(bpe))
    assert copy.fingerprint == bpe.fingerprint
    for mine, theirs in zip(bpe.encode(texts), copy.encode(texts), strict=True):
        np.testing.assert_array_equal(mine.ids, theirs.ids)
    mine, theirs = (piece.encode_with_specials(texts)[-1].ids.tolist() for piece in (bpe, copy))
    assert mine == theirs == [bpe.eos_id]


@pytest.fixture
def plain(tmp_path):
    """A word-level tokenizer.json with specials of unusual names, and its path."""
    vocabulary = {"red": 0, "<s>": 1, "<|im_end|>": 2, "blue": 3, "<|im_start|>": 9}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="red"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_specials_are_taken_by_name(plain):
    tokenizer = Pretrained(plain, bos="<|im_start|>", eos="<|im_end|>")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (9, 2, 10)
    assert tokenizer.encode(["blue red"])[0].ids.tolist() == [3, 0]


def test_specials_are_taken_from_the_configuration(plain):
    config = {"bos_token": None, "eos_token": {"content": "<|im_end|>"}}
    plain.with_name("tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Pretrained(plain.parent)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, 2)


def with_processor(file: Path, processor: object) -> None:
    library = tokenizers.Tokenizer.from_file(str(file))
    library.post_processor = processor
    library.save(str(file))


def template(single: str) -> tokenizers.processors.TemplateProcessing:
    specials = [("<s>", 1), ("<|im_end|>", 2), ("<|im_start|>", 9)]
    return tokenizers.processors.TemplateProcessing(single=single, special_tokens=specials)


BYTES = tokenizers.processors.ByteLevel(trim_offsets=False)
FIRST = [
    (None, None),
    (BYTES, None),
    (template("$A"), None),
    (template("$A <|im_end|>"), None),
    (template("<|im_start|> $A <|im_end|>"), 9),
    (tokenizers.processors.Sequence([BYTES, template("<s> $A")]), 1),
    (tokenizers.processors.Sequence([template("<s> $A"), BYTES]), 1),
    (tokenizers.processors.BertProcessing(("<|im_end|>", 2), ("<s>", 1)), 1),
]


def test_the_first_token_is_the_one_that_the_post_processor_puts(plain, caplog):
    config = plain.with_name("tokenizer_config.json")
    for named in (None, "<s>", "not there"):  # a name alone puts nothing
        config.write_text(json.dumps({"bos_token": named, "eos_token": "<|im_end|>"}))
        for processor, first in FIRST:
            with_processor(plain, processor)
            assert Pretrained(plain).bos_id == first, (named, processor)
            assert Pretrained(plain, bos="blue").bos_id == 3
    assert not caplog.records
    config.write_text(json.dumps({"add_bos_token": True, "bos_token": "<s>"}))
    with_processor(plain, BYTES)
    assert Pretrained(plain, eos="<|im_end|>").bos_id is None
    assert "add_bos_token=true. Pass bos='<s>'" in caplog.text


def test_several_first_tokens_are_an_error(plain):
    with_processor(plain, template("<s> <|im_start|> $A"))
    with pytest.raises(
        ValueError, match=r"at most one.*got \['<s>', '<\|im_start\|>'\].*bos='<s>'"
    ):
        Pretrained(plain, eos="<|im_end|>")
    assert Pretrained(plain, bos="<s>", eos="<|im_end|>").bos_id == 1


def test_a_damaged_configuration_is_an_error(plain):
    plain.with_name("tokenizer_config.json").write_text("[]")
    with pytest.raises(
        ValueError, match=r"a JSON object: got .*config.json'.*list.*Fetch or write"
    ):
        Pretrained(plain, eos="<|im_end|>")


def test_other_specials_are_another_tokenizer(plain):
    ours = Pretrained(plain, eos="<|im_end|>")
    assert ours.fingerprint != Pretrained(plain, eos="<|im_start|>").fingerprint
    assert ours.fingerprint == Pretrained(plain, eos="<|im_end|>").fingerprint


def test_an_eos_that_cannot_be_found_is_an_error(plain):
    with pytest.raises(ValueError, match=r"must have an end-of-document.*got .*Pass eos="):
        Pretrained(plain)


def test_a_special_outside_the_vocabulary_is_an_error(plain):
    with pytest.raises(ValueError, match=r"bos must be in the vocabulary: got bos='<b>'. Pass bos"):
        Pretrained(plain, bos="<b>", eos="<|im_end|>")


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"must exist: got path=.*without tokenizer.json. Give"):
        Pretrained(tmp_path)


def test_a_missing_extra_says_what_to_install(plain, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'dovetail-data\[tokenizers\]'"):
        Pretrained(plain, eos="<|im_end|>")


def test_a_tokenizer_says_its_size_and_special_ids(bpe):
    assert repr(bpe) == "Pretrained(vocab_size=700, bos_id=0, eos_id=1)"


def test_a_file_is_parsed_once(bpe, tmp_path, monkeypatch):
    """To find its specials, to encode text and chats, to decode and to write it."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "tokenizer.json").write_text(bpe.content, encoding="utf-8")
    parsed = []

    class Counted:
        def __new__(cls, model):
            return tokenizers.Tokenizer(model)

        @staticmethod
        def from_str(content):
            parsed.append(content)
            return tokenizers.Tokenizer.from_str(content)

    library = SimpleNamespace(Tokenizer=Counted, models=tokenizers.models)
    monkeypatch.setattr(tokenizer_module, "require_tokenizers", lambda: library)
    read = Pretrained(directory)
    assert read.decode(read.encode(["to be"])[0].ids) == "to be"
    chat = read.encode_with_specials([f"{read.name_of(read.eos_id)}to be"])[0]
    assert chat.ids.tolist() == [read.eos_id, *read.encode(["to be"])[0].ids]
    names = save_tokenizer(read, tmp_path)
    assert parsed == [bpe.content]
    assert names == ["tokenizer.json", "tokenizer_config.json"]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    whole = tokenizers.Tokenizer.from_str(bpe.content)
    assert config == {
        "bos_token": whole.id_to_token(read.bos_id),
        "eos_token": whole.id_to_token(read.eos_id),
        "add_bos_token": True,
    }
