# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tokenizers

from dovetail_data import Bytes, Pretrained
from dovetail_data.tokenizer_files import load_tokenizer, save_tokenizer


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
