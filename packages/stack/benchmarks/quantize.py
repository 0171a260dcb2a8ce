# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bits per byte of the quickstart's model, quantized, on the files that it held out.

The model is a finished run of scripts/quickstart: a small Llama on the sources of the standard
library, float32. Calibration sees rows that it was trained on; every matrix is quantized, the tied
embedding among them. The peer is the model itself, and loss is ratio - 1. bytes: of all
parameters. nats and top1: of each prediction, against the model's own, on some held-out rows.

    python packages/stack/benchmarks/quantize.py RUN

Without RUN it trains one first, which takes minutes.
"""

import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dovetail_quant as quant
from dovetail_data import Corpus, batches, pack
from dovetail_models import load
from dovetail_stack import settings
from dovetail_stack.model_directory import EXPORT
from dovetail_stack.recipes.evaluation import bits_per_byte
from measure import report

ROWS, BATCH = 256, 8  # rows to calibrate on; a quarter of as many to compare predictions on
GROUP = 64  # 128 does not divide the model's width of 192
INT4 = {"weight": "int4", "group": GROUP}
SPECS = {
    "int8, rounded": quant.Spec(),
    "int8 x int8, rounded": quant.Spec(act="int8"),
    f"int4 by {GROUP}, rounded": quant.Spec(**INT4),
    f"int4 by {GROUP}, awq": quant.Spec(**INT4, method="awq"),
    f"int4 by {GROUP}, gptq": quant.Spec(**INT4, method="gptq"),
}


def rows(corpus: Corpus, *, length: int, count: int) -> list:
    stream = batches(pack(corpus, length=length), global_batch=BATCH, seed=0, epochs=1)
    return list(itertools.islice(stream, count // BATCH))


def main(run: Path) -> None:
    model, length = load(run / EXPORT), settings.load(run).training.length
    calibration = rows(Corpus(run / "train"), length=length, count=ROWS)
    corpus = Corpus(run / "held_out")
    compared = rows(corpus, length=length, count=ROWS // 4)

    def bits(model) -> float:
        return bits_per_byte(model, corpus, length=length, stride=length)

    before = bits(model)
    for name, spec in SPECS.items():
        start = time.perf_counter()
        plan = quant.plan(model, [(("**", "embed"), spec)])
        found = quant.calibrate(model, plan, calibration) if spec.method != "absmax" else plan
        quantized = quant.apply(model, found)
        seconds = time.perf_counter() - start
        costs = quant.report(model, quantized, compared)
        after = bits(quantized)
        report(
            f"quickstart's model, {name}",
            metric="bits_per_byte",
            unit="bits/byte",
            values=[after],
            peer="the float32 model",
            peer_values=[before],
            loss=after / before - 1,
            bytes=costs.bytes_after,
            peer_bytes=costs.bytes_before,
            nats=costs.kl,
            top1=costs.top1,
            quantize_s=seconds,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as out:
            line = [sys.executable, "-m", "dovetail_stack", "quickstart", "--out", out]
            subprocess.run(line, check=True, stdout=sys.stderr)
            main(Path(out))
