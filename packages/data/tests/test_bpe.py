# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys

import pytest

from dovetail_data import Pretrained, train_bpe

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
