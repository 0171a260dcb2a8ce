# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two random Llamas for the benchmarks of the engine, as Hugging Face directories.

No benchmark of its own. `0.5B` is bound by the reading of its weights, `5M` by everything else.
"""

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
