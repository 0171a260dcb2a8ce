# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantizes a decoder by a plan: calibration on text and measurement.

`dovetail_stack.quantized_directory` saves and loads the result.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import dovetail_quant as quant
from dovetail_data import (
    Corpus,
    Pretrained,
    Progress,
    Text,
    batches,
    draw_files,
    hold_out_files,
    pack,
    text,
    within,
    write,
)
from dovetail_models import Decoder
from dovetail_stack.recipes.evaluation import bits_per_byte
from dovetail_stack.recipes.text import select

HELD_OUT = 0.2  # of the files of a text
BATCH = 8  # rows that go through the model together
TOKEN_BYTES = 8  # of text for a token, at the most that is usual: so much is read for each


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows for calibration and for measurement.

    Attributes:
        calibration: Batches to calibrate on.
        held_out: Batches to measure on.
        corpus: All held-out documents.
        length: Tokens in a row.
    """

    calibration: Sequence[Mapping[str, np.ndarray]]
    held_out: Sequence[Mapping[str, np.ndarray]]
    corpus: Corpus
    length: int


def read_rows(
    directory: Path,
    tokenizer: Pretrained,
    scratch: Path,
    *,
    length: int,
    rows: int,
    vocab_size: int | None = None,
    pattern: str = "**/*",
    progress: Callable[[str, Progress], None] | None = None,
) -> Rows:
    """Reads about `rows` rows for calibration and as many held-out ones from a directory of text.

    Rows come in whole batches of BATCH. A short text gives fewer.

    Args:
        directory: Text files.
        tokenizer: The model's tokenizer.
        scratch: Directory for the corpora. Keep it as long as the result.
        length: Tokens in a row.
        rows: Number of rows of each kind.
        vocab_size: Rows of the model's embedding. None: as many as the tokenizer has ids.
        pattern: Glob of the files.
        progress: Receives "calibration" or "held-out", and the writer's event.
    """
    selection = select(directory, pattern=pattern)
    halves = hold_out_files(selection.files, root=directory, share=HELD_OUT)
    encoder = within(Text(tokenizer), vocab_size=vocab_size)
    corpora, taken = [], []
    for name, files in zip(("calibration", "held-out"), halves, strict=True):
        drawn = text(draw_files(files, size_bytes=rows * length * TOKEN_BYTES))
        report = progress and functools.partial(progress, name)
        corpora.append(write(drawn, scratch / name, encoder=encoder, progress=report))
        stream = batches(pack(corpora[-1], length=length), global_batch=BATCH, seed=0, epochs=1)
        taken.append(list(itertools.islice(stream, math.ceil(rows / BATCH))))
    return Rows(calibration=taken[0], held_out=taken[1], corpus=corpora[1], length=length)


def check_method(plan: quant.Plan) -> None:
    """Raises ValueError if the plan needs calibration."""
    if plan.calibrates:
        methods = sorted({spec.method for spec in plan.specs.values()} - {"absmax"})
        raise ValueError(
            f"{' and '.join(methods)} must see text that the model is for, got none: pass "
            "text=DIR, or method=absmax, which rounds to nearest"
        )


def quantize(
    model: Decoder, plan: quant.Plan, rows: Rows | None
) -> tuple[Decoder, Mapping[str, int]]:
    """Returns the quantized model, and the number of rows seen by sites that had too few of them.

    Raises ValueError if the plan needs calibration and there are no rows.

    Args:
        model: The decoder.
        plan: The plan.
        rows: Rows for calibration.
    """
    if rows is None:
        check_method(plan)
    if rows is None or not plan.calibrates:
        return quant.apply(model, plan), {}
    calibrated = quant.calibrate(model, plan, rows.calibration)
    return quant.apply(model, calibrated), calibrated.starved


def measure(
    model: Decoder,
    quantized: Decoder,
    plan: quant.Plan,
    rows: Rows | None,
    *,
    starved: Mapping[str, int],
) -> quant.Receipt:
    """Measures bytes and, with rows, the error on held-out text.

    Args:
        model: The decoder before.
        quantized: The decoder after.
        plan: The plan.
        rows: Held-out rows, or None.
        starved: Sites with too few rows.
    """
    if rows is None:
        return quant.receipt(model, quantized, plan, starved=starved)
    sizes = {"length": rows.length, "stride": max(1, rows.length // 2), "rows_per_batch": BATCH}
    before, after = (bits_per_byte(m, rows.corpus, **sizes) for m in (model, quantized))
    return quant.receipt(
        model, quantized, plan, rows.held_out, starved=starved, bits_per_byte=(before, after)
    )
