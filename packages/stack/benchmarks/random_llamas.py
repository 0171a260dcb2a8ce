# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Random Llamas for the benchmarks of the engine, as Hugging Face directories.

No benchmark of its own. `0.5B` is bound by the reading of its weights, `5M` by everything else.
"""

import json
from pathlib import Path

import dovetail_models as models

CONFIGS = {
    "5M": models.llama(vocab_size=512, embed=256, depth=6, heads=8, kv_heads=4, mlp=768),
    "0.5B": models.llama(vocab_size=32000, embed=1536, depth=16, heads=24, kv_heads=8, mlp=4096),
}


def saved(name: str, folder: Path) -> Path:
    """The directory of one of them below `folder`, float32, written if it is not there."""
    directory = folder / name
    if not directory.exists():
        models.save(models.init(CONFIGS[name], seed=0), directory)
    return directory


def write_words(directory: Path) -> None:
    """Adds a tokenizer whose every id is a word, so that each token is a piece of text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    size = json.loads((directory / "config.json").read_text())["vocab_size"]
    words = {"<unk>": 0, "</s>": 1} | {f"w{i}": i for i in range(2, size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
