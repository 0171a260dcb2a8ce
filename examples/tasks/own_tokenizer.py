# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

from dovetail_data import Pretrained, Text, pack, text, train_bpe, write

folder = Path(json.__file__).parent
train_bpe((file.read_text() for file in folder.glob("*.py")), "mine", vocab_size=512)
tokenizer = Pretrained("mine")  # or the folder of any model with a tokenizer.json

corpus = write(text(folder, pattern="*.py"), "corpus", encoder=Text(tokenizer))
rows = pack(corpus, length=128, seed=0)
print(rows, "for a model with vocab_size =", corpus.vocab_size)

(encoding,) = tokenizer.encode(["return self.default(o)"])
print([tokenizer.decode([token]) for token in encoding.ids])
print("back:", tokenizer.decode(encoding.ids))
# prints: back: return self.default(o)
