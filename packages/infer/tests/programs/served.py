# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A server of a small engine on a free port, which its log names."""

import logging
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from engines import text_engine

from dovetail_infer.server import app, run
from dovetail_infer.testing import ByteTokenizer

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    with text_engine() as engine:
        run(app(engine, name="tiny", tokenizer=ByteTokenizer()), port=0)
