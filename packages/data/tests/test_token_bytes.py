# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tokenizers

from dovetail_data import Bytes, Pretrained, token_bytes

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


def test_bytes_of_other_tokenizers_are_unknown(tmp_path):
    vocabulary = {"red": 0, "<|im_end|>": 2}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="red"))
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Pretrained(tmp_path, eos="<|im_end|>")
    with pytest.raises(ValueError, match=r"byte-level.*got decoder=None. Count the bytes"):
        token_bytes(tokenizer)
