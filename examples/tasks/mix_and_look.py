# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import email
import json
from pathlib import Path

from dovetail_data import Bytes, Text, batches, budget, mix, pack, show, text, write


def rows_of(package):
    files = text(Path(package.__file__).parent, pattern="*.py")
    corpus = write(files, package.__name__, encoder=Text(Bytes()))
    return pack(corpus, length=128, seed=0)


sources = {"json": rows_of(json), "email": rows_of(email)}
print(show(sources["json"], [0]))

mixture = mix(sources, weights={"json": 3, "email": 1})
print(budget(mixture, steps=1000, global_batch=8))
batch = next(batches(mixture, global_batch=8, seed=0))
print("rows of json in the first batch:", int((batch["source"] == 1).sum()))
# prints: rows of json in the first batch: 6
