# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys

import numpy as np
import pytest
import tokenizers

from dovetail_data import Bytes, Pretrained, train_bpe
from dovetail_data.corpus.tokenizer_files import load_tokenizer, save_tokenizer


@pytest.mark.parametrize("bos, eos", [(None, "</s>"), ("<s>", "</s>"), ("</s>", "<s>")])
def test_what_is_loaded_encodes_as_what_was_saved(tmp_path, bos, eos):
    vocabulary = {"<s>": 0, "</s>": 1, "a": 2, "b": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>", "</s>"])
    (tmp_path / "in").mkdir()
    made.save(str(tmp_path / "in" / "tokenizer.json"))
    original = Pretrained(tmp_path / "in", bos=bos, eos=eos)
    save_tokenizer(original, tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == original.fingerprint
    assert (loaded.bos_id, loaded.eos_id) == (vocabulary.get(bos), vocabulary[eos])
    np.testing.assert_array_equal(loaded.encode(["b a b"])[0].ids, [3, 2, 3])


def test_bytes_are_remembered_and_others_are_not(tmp_path):
    class Shifted(Bytes):
        fingerprint = "shifted"

    save_tokenizer(Shifted(), tmp_path)
    assert load_tokenizer(tmp_path) is None
    save_tokenizer(Bytes(), tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == Bytes.fingerprint


CORPUS = ["the cat sat on the mat\n", "the dog sat on the log\n", "el niño comió piñas\n"] * 5


@pytest.mark.thorough
def test_the_same_texts_give_the_same_file_in_any_process(tmp_path):
    train_bpe(iter(CORPUS), tmp_path / "here.json", vocab_size=300)
    program = (
        "import sys; from dovetail_data import train_bpe;"
        f"train_bpe({CORPUS!r}, sys.argv[1], vocab_size=300)"
    )
    for seed in "12":
        there = tmp_path / f"{seed}.json"
        environment = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        subprocess.run([sys.executable, "-c", program, there], check=True, env=environment)
        assert there.read_bytes() == (tmp_path / "here.json").read_bytes()


def test_merges_shorten_what_was_seen(tmp_path):
    tokenizer = train_bpe(CORPUS, tmp_path, vocab_size=300)
    assert 258 < tokenizer.vocab_size <= 300
    (encoding,) = tokenizer.encode(["the cat sat on the mat"])
    assert len(encoding.ids) < 12  # of 22 bytes


def test_every_byte_comes_back_though_never_seen(tmp_path):
    tokenizer = train_bpe(["a"], tmp_path, vocab_size=258)
    text = "".join(map(chr, range(0x250))) + "\U0001f4a9\uffff"
    (encoding,) = tokenizer.encode([text])
    assert tokenizer.decode(encoding.ids) == text
    assert tokenizer.vocab_size == 258


def test_the_directory_is_one_that_other_programs_load(tmp_path):
    trained = train_bpe(CORPUS, tmp_path / "new" / "directory", vocab_size=280)
    names = sorted(path.name for path in (tmp_path / "new" / "directory").iterdir())
    assert names == ["tokenizer.json", "tokenizer_config.json"]
    config = json.loads((tmp_path / "new/directory/tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|bos|>", "<|eos|>")
    loaded = Pretrained(tmp_path / "new" / "directory")
    assert loaded.fingerprint == trained.fingerprint


def test_too_small_a_vocabulary_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"all bytes.*got vocab_size=257. Pass at least 258"):
        train_bpe(CORPUS, tmp_path, vocab_size=257)
