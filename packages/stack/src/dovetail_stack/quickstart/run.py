# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The quickstart: trains a language model on a directory and writes a report."""

import json
import os
import platform
import re
import shlex
import shutil
import statistics
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from dovetail_data import Corpus, hold_out_files, pack, select_text, show
from dovetail_runs import Run, Section, page
from dovetail_stack import settings
from dovetail_stack.doctor import pins
from dovetail_stack.model_directory import EXPORT
from dovetail_stack.quickstart.compression import compressors
from dovetail_stack.quickstart.training import Resume, Text, train
from dovetail_stack.recipes.options import METRICS, Duration
from dovetail_stack.settings import Pretrain
from dovetail_train import read_jsonl

if TYPE_CHECKING:
    from dovetail_infer import Engine

PROMPTS = ("def read_", "class ", "    for i in range(")
SAMPLE_TOKENS = 64
SAMPLED = {"temperature": 0.7, "top_p": 0.9, "seed": 0}
ROWS, SHOWN_ROWS = "rows.html", 8
MEANING = (
    "The loss falls as the model learns to predict the next token. For each byte of files that it "
    "never saw, it needs {model:.3f} bits: 8 would be chance, and lower is better. gzip reaches "
    "{gzip:.3f} and xz {xz:.3f} on the same bytes, as one stream; the model has each file by "
    "itself, and its training."
)


def standard_library() -> Text:
    """Returns the Python sources of the standard library on this machine.

    Tests are left out, and so is pydoc_data: one generated file of help texts, larger than all
    other held-out files together.
    """
    return Text(
        directory=Path(sysconfig.get_paths()["stdlib"]),
        pattern="**/*.py",
        skip=("site-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data"),
    )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of a finished run.

    Attributes:
        bits_per_byte: Of the held-out files; the model first, then the compressors.
        parameters: Number of parameters.
        tokens_per_s: Median over the steps.
        train_s: Training time in seconds.
        resume: Comparison of the repeated steps.
        samples: (prompt, continuation) pairs.
        versions: Versions by package.
    """

    bits_per_byte: Mapping[str, float]
    parameters: int
    tokens_per_s: float
    train_s: float
    resume: Resume
    samples: list[tuple[str, str]]
    versions: Mapping[str, str]


def quickstart(text: Text, out: Path, *, duration: Duration) -> dict[str, Any]:
    """Trains, evaluates, samples and reports.

    Args:
        text: The corpus.
        out: Directory of the run; also receives report.html and result.json.
        duration: Length of the run.

    Returns:
        The content of result.json.
    """
    start = time.perf_counter()
    resume = train(text, out, duration=duration)
    measured = _measure(out, resume)
    result = {
        **{
            key: measured.bits_per_byte[name]
            for key, name in (
                ("bits_per_byte", "this model"),
                ("gzip_bits_per_byte", "gzip"),
                ("bzip2_bits_per_byte", "bzip2"),
                ("xz_bits_per_byte", "xz"),
            )
        },
        "tokens_per_second": measured.tokens_per_s,
        "train_seconds": measured.train_s,
        "total_seconds": time.perf_counter() - start,
        "resumed_bit_exact": resume.bit_exact,
        "parameters": measured.parameters,
        "steps": _settings(out).duration.steps,
        "device": _device(),
        "cores": os.cpu_count(),
        "loadavg": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # not on Windows
        "date": time.strftime("%Y-%m-%d"),
        "versions": dict(measured.versions),
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    _report(out, measured, total_s=result["total_seconds"])
    return result


def _measure(out: Path, resume: Resume) -> Measured:
    from dovetail_data import Pretrained
    from dovetail_models import load, size
    from dovetail_stack.recipes.engine import engine
    from dovetail_stack.recipes.evaluation import bits_per_byte

    run = _settings(out)
    model, tokenizer = load(out / EXPORT), Pretrained(out / EXPORT)
    print("\nJudging it by the held-out files.", flush=True)
    length = run.training.length
    bits = bits_per_byte(model, Corpus(out / "held_out"), length=length, stride=length // 2)
    rates = [line["tokens_per_s"] for line in read_jsonl(out / METRICS) if "tokens_per_s" in line]
    seconds = [line["step_time_s"] for line in read_jsonl(out / METRICS) if "step_time_s" in line]
    with engine(model, tokenizer=tokenizer, max_rows=1) as opened:
        samples = [(prompt, _show(opened, prompt)) for prompt in PROMPTS]
    return Measured(
        bits_per_byte={"this model": bits, **compressors(_held_out_bytes(run))},
        parameters=size(model.config),
        tokens_per_s=statistics.median(rates) if rates else 0.0,
        train_s=sum(seconds),
        resume=resume,
        samples=samples,
        versions={"python": platform.python_version(), **_installed()},
    )


def _settings(out: Path) -> Pretrain:
    run = settings.load(out)
    if not isinstance(run, Pretrain):
        raise ValueError(
            f"the quickstart must have a run of pretrain, got {str(out)!r} with one of "
            f"{run.recipe}: name another --out"
        )
    return run


def _held_out_bytes(run: Pretrain) -> bytes:
    files, root = run.files, Path(run.files.text)
    paths = select_text(root, pattern=files.pattern, skip=files.skip).files
    _, held_out = hold_out_files(paths, root=root, share=files.held_out)
    return b"".join(file.read_bytes() for file in held_out)


def _show(engine: "Engine", prompt: str) -> str:
    """Streams one continuation to the terminal and returns it."""
    from dovetail_infer import Sampling

    print(f"\n>>> {prompt}", end="", flush=True)
    with engine.stream(prompt, Sampling(max_tokens=SAMPLE_TOKENS, **SAMPLED)) as stream:
        for piece in stream:
            print(piece.text, end="", flush=True)
    print()
    return stream.completion.text


def _installed() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("dovetail-stack", *pins())}


def _device() -> str:
    """Returns the name of the accelerator, or of the processor where JAX uses none."""
    kind = jax.devices()[0].device_kind
    if jax.default_backend() != "cpu":
        return kind
    file = Path("/proc/cpuinfo")  # Linux alone has it
    named = re.search(r"model name\s*: (.+)", file.read_text()) if file.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def _report(out: Path, measured: Measured, *, total_s: float) -> None:
    run = _settings(out)
    steps = run.duration.steps or 0
    rows = pack(Corpus(out / "train"), length=run.training.length, seed=run.training.seed)
    shown = show(rows, range(min(SHOWN_ROWS, len(rows))))
    (out / ROWS).write_text(shown.html(title="Training rows"), encoding="utf-8")
    peaks = f"{run.training.matrix_learning_rate:g} (matrices), {run.training.learning_rate:g}"
    facts = {
        "Text": f"{run.files.text} ({run.files.pattern})",
        "Rows": f"{rows.fill:.2%} full; {SHOWN_ROWS} of them as text: {out / ROWS}",
        "Parameters": f"{measured.parameters:,}",
        "Steps": f"{steps} of {run.training.global_batch} × {run.training.length} tokens",
        "Learning rate": f"peak {peaks}; 5% linear warm-up, then cosine to 5% of the peak",
        "Training": f"{measured.train_s:.0f} s, median {measured.tokens_per_s:,.0f} tokens/s",
        "All in all": f"{total_s:.0f} s",
        "Devices": f"{jax.device_count()} × {jax.devices()[0].device_kind}",
        "Model": f"{out / EXPORT}, a Hugging Face directory",
    }
    samples = [f"{prompt}{continuation}" for prompt, continuation in measured.samples]
    bits = measured.bits_per_byte
    meaning = MEANING.format(model=bits["this model"], gzip=bits["gzip"], xz=bits["xz"])
    sections = [
        Section(heading="What the model learned: bits per byte", content=bits, note=meaning),
        Section(heading="Text that the model wrote", content=samples),
        Section(heading="Next steps", content=_next_steps(out)),
        Section(heading="The run", content=facts, note=str(measured.resume)),
    ]
    shown = page(
        {"this run": Run(out)},
        title="Dovetail quickstart",
        sections=sections,
        leave_out=["eval/bits_per_byte"],  # of fewer bytes; one page has one such figure
    )
    shown.write(out / "report.html")


def _next_steps(out: Path) -> dict[str, str]:
    beside = Path(sys.executable).with_name("dovetail")  # of an environment that is not activated
    dovetail = "dovetail" if shutil.which("dovetail") else shlex.quote(str(beside))
    run, longer, other = (shlex.quote(f"{out}{end}") for end in ("", "-6000", "-text"))
    return {
        "Train longer": f"{dovetail} quickstart --steps 6000 --out {longer}",
        "Your own text": f"{dovetail} quickstart --text DIR --out {other}",
        "A prompt of yours": f"{dovetail} generate {run} --prompt 'class '",
        "Open it in transformers": f"AutoModelForCausalLM.from_pretrained('{out / EXPORT}')",
        "Check the installation": f"{dovetail} doctor",
    }
