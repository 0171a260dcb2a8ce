# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_data import Bytes, Text, text, write


@pytest.fixture
def corpus(here):
    (here / "a.txt").write_text("some text")
    write(text("a.txt"), "corpus", encoder=Text(Bytes()))
    return here / "corpus"


def test_a_whole_corpus(command, corpus):
    sizes = [path.stat().st_size for path in corpus.iterdir()]
    size, files = sum(sizes), len(sizes)
    expected = f"corpus: {size:,} bytes in {files} files are as they were written\n"
    assert command("verify", "corpus") == (0, expected, "")
    code, out, _ = command("verify", "corpus", "--json")
    assert (code, json.loads(out)) == (0, {"corpus": "corpus", "files": files, "bytes": size})


def test_a_damaged_corpus_is_refused_with_the_file(command, corpus):
    path = corpus / "00000.array_record"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    code, out, err = command("verify", "corpus")
    assert (code, out) == (3, "")
    assert "got corpus/00000.array_record with another sha256 than index.json says" in err


def test_digests_are_added(command, corpus):
    written = (corpus / "index.json").read_bytes()
    index = json.loads(written)
    del index["files"], index["sha256"]
    (corpus / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    assert command("verify", "corpus", "--add")[0] == 0
    assert (corpus / "index.json").read_bytes() == written
