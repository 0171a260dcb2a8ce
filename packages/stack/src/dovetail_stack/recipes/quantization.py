# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantizes a decoder: plan, calibration on text, measurement, saving and loading.

The written directory has config.json and the tokenizer in the format of Hugging Face, the codes of
`dovetail_quant.save`, and a report as report.txt and report.json.
"""

import dataclasses
import functools
import itertools
import json
import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx

import dovetail_quant as quant
from dovetail_data import (
    Corpus,
    Pretrained,
    Progress,
    Text,
    batches,
    hold_out_files,
    pack,
    text,
    within,
    write,
)
from dovetail_models import Decoder, abstract
from dovetail_models._durable import new_directory
from dovetail_models.hf import safetensors
from dovetail_models.hf.config import describe, parse
from dovetail_models.hf.save import BESIDE
from dovetail_models.placing.shard import WEIGHTS
from dovetail_quant.files import WEIGHTS as WEIGHTS_FILE
from dovetail_quant.matmul.api import MatmulOption
from dovetail_quant.reports.report import parameter_bytes
from dovetail_quant.sites.kernel import Kernel
from dovetail_quant.sites.sites import selects
from dovetail_stack.recipes.evaluation import bits_per_byte
from dovetail_stack.recipes.text import select

Method = Literal["absmax", "gptq", "awq"]
CONFIG = "config.json"
# Inputs that share a scale of int4: 128, as in most published models, or as many as divide.
GROUPS = (128, 64, 32, 16)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Receipt:
    """Savings and losses of a quantization. Without text, bytes alone.

    Attributes:
        plan: The plan.
        bytes_before: Bytes of the parameters before.
        bytes_after: Bytes of the parameters after.
        starved: Number of rows seen, by site, for sites rounded to nearest for lack of rows.
        report: Errors on held-out rows.
        bits_per_byte: Of the held-out text, before and after.
    """

    plan: quant.Plan
    bytes_before: int
    bytes_after: int
    starved: Mapping[str, int]
    report: quant.Report | None = None
    bits_per_byte: tuple[float, float] | None = None

    def __str__(self) -> str:
        if self.report is None or self.bits_per_byte is None:
            share = self.bytes_after / self.bytes_before
            text = f"{self.plan}\n\nbytes   {self.bytes_before} to {self.bytes_after} ({share:.3f})"
        else:
            before, after = self.bits_per_byte
            change = f"({after / before - 1:+.2%})"
            text = f"{self.report}\nbits    {before:.4f} to {after:.4f} a byte of text {change}"
            alone = [f"{path}  {why}" for path, why in self.plan.left_alone.items()]
            text += "".join(f"\nleft alone: {line}" for line in alone)
        short = [f"\nrounded to nearest, of {rows} rows: {p}" for p, rows in self.starved.items()]
        return text + "".join(short) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {
            "plan": self.plan.to_json(),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "starved": dict(self.starved),
            "report": self.report and self.report.to_json(),
            "bits_per_byte": self.bits_per_byte and list(self.bits_per_byte),
        }


def choose(
    model: nnx.Module,
    *,
    bits: int,
    group: int | None = None,
    method: Method | None = None,
    also: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> quant.Plan:
    """Plans 8 bits with one scale per output, or 4 bits with groups of inputs, for every matrix.

    Embedding and head stay float unless `also` names them; the plan says so.

    Args:
        model: The decoder; may be abstract.
        bits: 8 or 4.
        group: Inputs with one scale. Default: all inputs for 8 bits; for 4 bits the largest of
            GROUPS that divides the inputs of the site.
        method: Default: absmax for 8 bits, gptq for 4.
        also: Name patterns of embedding and head, `("embed", "lm_head")`.
        skip: Name patterns of modules to leave in float.

    Returns:
        The plan. Print it to see the group of each site.

    Raises:
        ValueError: As `dovetail_quant.plan`, for example if a group does not divide the inputs of a
            matrix, or none of GROUPS does.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got bits={bits}: pass bits=8, which loses least")
    everything = ["**", *also]
    weight, usual = ("int8", "absmax") if bits == 8 else ("int4", "gptq")
    spec = functools.partial(quant.Spec, weight=weight, method=method or usual)
    rules: list[Any] = [(pattern, None) for pattern in skip]
    if bits == 8 or group is not None:
        rules.append((everything, spec(group=group)))
    else:
        groups = _groups(model, everything, skip)
        rules += [(path, spec(group=size)) for path, size in groups.items()]
    return quant.plan(model, rules)


def _groups(model: nnx.Module, patterns: Sequence[str], skip: Sequence[str]) -> dict[str, int]:
    """Returns the inputs with one int4 scale, by path of the selected sites."""
    floats = quant.sites(model, where=skip) if skip else {}
    groups = {}
    for path, site in quant.sites(model, where=patterns).items():
        if site.left_alone or path in floats or not selects(patterns, site):
            continue
        inputs = site.axes.sizes[1]
        size = group_of(inputs)
        if size is None:
            raise ValueError(
                f"4 bits share a scale among {GROUPS[-1]} inputs or more, and {path!r} has "
                f"{inputs}, which none of {GROUPS} divides; name its --group, or leave it float "
                f"with --float {path}"
            )
        groups[path] = size
    return groups


def group_of(inputs: int) -> int | None:
    """Returns the largest of GROUPS that divides the inputs of a matrix; None if none does."""
    return next((size for size in GROUPS if inputs % size == 0), None)


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
        drawn = text(_enough(files, rows * length * TOKEN_BYTES))
        report = progress and functools.partial(progress, name)
        corpora.append(write(drawn, scratch / name, encoder=encoder, progress=report))
        stream = batches(pack(corpora[-1], length=length), global_batch=BATCH, seed=0, epochs=1)
        taken.append(list(itertools.islice(stream, math.ceil(rows / BATCH))))
    return Rows(calibration=taken[0], held_out=taken[1], corpus=corpora[1], length=length)


def _enough(files: Sequence[Path], size: int) -> list[Path]:
    """Draws files at random, with a fixed seed, until they hold `size` bytes. Sorted."""
    drawn = random.Random(0).sample(list(files), len(files))
    sums = itertools.accumulate(file.stat().st_size for file in drawn)
    count = next((i for i, total in enumerate(sums, start=1) if total >= size), len(drawn))
    return sorted(drawn[:count])


def calibrates(plan: quant.Plan) -> bool:
    """Tests whether the plan has a method with calibration."""
    return any(spec.method != "absmax" for spec in plan.specs.values())


def check_method(plan: quant.Plan) -> None:
    """Raises ValueError if the plan needs calibration."""
    if calibrates(plan):
        methods = sorted({spec.method for spec in plan.specs.values()} - {"absmax"})
        raise ValueError(
            f"{' and '.join(methods)} must see text that the model is for, got none: pass --text "
            "DIR, or --method absmax, which rounds to nearest"
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
    if rows is None or not calibrates(plan):
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
) -> Receipt:
    """Measures bytes and, with rows, the error on held-out text.

    Args:
        model: The decoder before.
        quantized: The decoder after.
        plan: The plan.
        rows: Held-out rows, or None.
        starved: Sites with too few rows.
    """
    report = bits = None
    if rows is not None:
        sizes = {"length": rows.length, "stride": max(1, rows.length // 2), "rows_per_batch": BATCH}
        before, after = (bits_per_byte(m, rows.corpus, **sizes) for m in (model, quantized))
        report, bits = quant.report(model, quantized, rows.held_out), (before, after)
    return Receipt(
        plan=plan,
        bytes_before=parameter_bytes(model),
        bytes_after=parameter_bytes(quantized),
        starved=starved,
        report=report,
        bits_per_byte=bits,
    )


def save(quantized: Decoder, receipt: Receipt, out: Path, *, like: Path) -> None:
    """Writes a directory for `load`, whole or not at all.

    Args:
        quantized: The quantized decoder.
        receipt: Stored as report.txt and report.json.
        out: Directory to create.
        like: Directory with the tokenizer.

    Raises:
        FileExistsError: Something is at `out`.
        ValueError: The kernels have several dtypes.
    """
    kinds = {str(kernel.dtype) for kernel in _kernels(quantized)}
    if len(kinds) != 1:
        raise ValueError(
            f"the kernels of a model must have one dtype, got {', '.join(sorted(kinds))}: cast it "
            "first, with dovetail models convert --dtype"
        )
    (kind,) = kinds
    keys = {**describe(quantized.config), "dtype": kind, "torch_dtype": kind}
    with new_directory(out) as partial:
        quant.save(quantized, partial)
        for file in (like / name for name in BESIDE if (like / name).is_file()):
            shutil.copyfile(file, partial / file.name)
        (partial / "report.txt").write_text(str(receipt), encoding="utf-8")
        for name, values in {CONFIG: keys, "report.json": receipt.to_json()}.items():
            content = json.dumps(values, indent=2, sort_keys=True)
            (partial / name).write_text(content + "\n", encoding="utf-8")


def load(directory: Path, *, matmul: MatmulOption = "auto") -> Decoder:
    """Loads the decoder written by `save`, bit for bit; `matmul` as in `dovetail_quant.load`."""
    keys = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    model = abstract(parse(keys))
    stored = safetensors.header(directory / WEIGHTS_FILE)

    def typed(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
        entry = stored.get(".".join(map(str, path)))  # there is none of what is codes
        kind = np.dtype(keys["dtype"]) if entry is None else safetensors.dtype(entry)
        return param.replace(jax.ShapeDtypeStruct(param.shape, kind))

    nnx.update(model, nnx.map_state(typed, nnx.state(model, WEIGHTS)))
    return quant.load(directory, model, matmul=matmul)


def _kernels(model: nnx.Module) -> list[Any]:
    """Returns the quantized kernels."""
    leaves = jax.tree.leaves(nnx.state(model), is_leaf=lambda x: isinstance(x, Kernel))
    return [leaf for leaf in leaves if isinstance(leaf, Kernel)]
