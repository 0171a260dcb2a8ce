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
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from dovetail_data import Corpus, Pretrained, pack, show
from dovetail_infer import Engine, Sampling
from dovetail_models import load, size
from dovetail_runs import Run, Section, page
from dovetail_stack import settings
from dovetail_stack.doctor import pins
from dovetail_stack.model_directory import EXPORT
from dovetail_stack.quickstart.compression import compressors
from dovetail_stack.quickstart.training import Resume, train
from dovetail_stack.recipes.engine import engine
from dovetail_stack.recipes.evaluation import bits_per_byte
from dovetail_stack.recipes.options import Duration, Files
from dovetail_stack.settings import Pretrain
from dovetail_stack.text_jobs import split

PROMPTS = ("def read_", "class ", "    for i in range(")
SAMPLING = Sampling(max_tokens=64, temperature=0.7, top_p=0.9, seed=0)
ROWS, SHOWN_ROWS = "rows.html", 8
MEANING = (
    "The loss falls as the model learns to predict the next token. For each byte of files that it "
    "never saw, it needs {model:.3f} bits: 8 would be chance, and lower is better. gzip reaches "
    "{gzip:.3f} and xz {xz:.3f} on the same bytes, as one stream; the model has each file by "
    "itself, and its training."
)


def standard_library() -> Files:
    """Returns the Python sources of the standard library on this machine.

    Tests are left out, and so is pydoc_data: one generated file of help texts, larger than all
    other held-out files together.
    """
    return Files(
        text=sysconfig.get_paths()["stdlib"],
        pattern="**/*.py",
        skip=("site-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data"),
    )


def quickstart(files: Files, out: Path, *, duration: Duration) -> dict[str, Any]:
    """Trains, evaluates, samples and reports.

    Args:
        files: The text.
        out: Directory of the run; also receives report.html and result.json.
        duration: Length of the run.

    Returns:
        The content of result.json.
    """
    start = time.perf_counter()
    resume = train(files, out, duration=duration)
    run = _settings(out)
    model, tokenizer = load(out / EXPORT), Pretrained(out / EXPORT)
    print("\nJudging it by the held-out files.", flush=True)
    length = run.training.length
    bits = bits_per_byte(model, Corpus(out / "held_out"), length=length, stride=length // 2)
    _, (_, held_out) = split(run)
    compressed = compressors(b"".join(file.read_bytes() for file in held_out))
    with engine(model, tokenizer=tokenizer, max_rows=1) as opened:
        samples = [f"{prompt}{_show(opened, prompt)}" for prompt in PROMPTS]
    metrics = Run(out).metrics
    rates, seconds = (
        metrics.curve(name).values.tolist() for name in ("tokens_per_s", "step_time_s")
    )
    result = {
        "bits_per_byte": bits,
        **{f"{name}_bits_per_byte": value for name, value in compressed.items()},
        "tokens_per_second": statistics.median(rates) if rates else 0.0,
        "train_seconds": sum(seconds),
        "total_seconds": time.perf_counter() - start,
        "resumed_bit_exact": resume.bit_exact,
        "parameters": size(model.config),
        "steps": run.duration.steps,
        "device": _device(),
        "cores": os.cpu_count(),
        "loadavg": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # not on Windows
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("dovetail-stack", *pins())},
        },
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    _report(run, out, result, resume=resume, samples=samples)
    return result


def _settings(out: Path) -> Pretrain:
    run = settings.load(out)
    if not isinstance(run, Pretrain):
        raise ValueError(
            f"the quickstart must have a run of pretrain, got {str(out)!r} with one of "
            f"{run.recipe}: name another --out"
        )
    return run


def _show(engine: Engine, prompt: str) -> str:
    """Streams one continuation to the terminal and returns it."""
    print(f"\n>>> {prompt}", end="", flush=True)
    with engine.stream(prompt, SAMPLING) as stream:
        for piece in stream:
            print(piece.text, end="", flush=True)
    print()
    return stream.completion.text


def _device() -> str:
    """Returns the name of the accelerator, or of the processor where JAX uses none."""
    kind = jax.devices()[0].device_kind
    if jax.default_backend() != "cpu":
        return kind
    file = Path("/proc/cpuinfo")  # Linux alone has it
    named = re.search(r"model name\s*: (.+)", file.read_text()) if file.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def _report(
    run: Pretrain, out: Path, result: dict[str, Any], *, resume: Resume, samples: list[str]
) -> None:
    rows = pack(Corpus(out / "train"), length=run.training.length, seed=run.training.seed)
    shown = show(rows, range(min(SHOWN_ROWS, len(rows))))
    (out / ROWS).write_text(shown.html(title="Training rows"), encoding="utf-8")
    peaks = f"{run.training.matrix_learning_rate:g} (matrices), {run.training.learning_rate:g}"
    batch = f"{run.training.global_batch} × {run.training.length} tokens"
    rate = f"median {result['tokens_per_second']:,.0f} tokens/s"
    facts = {
        "Text": f"{run.files.text} ({run.files.pattern})",
        "Rows": f"{rows.fill:.2%} full; {SHOWN_ROWS} of them as text: {out / ROWS}",
        "Parameters": f"{result['parameters']:,}",
        "Steps": f"{result['steps'] or 0} of {batch}",
        "Learning rate": f"peak {peaks}; 5% linear warm-up, then cosine to 5% of the peak",
        "Training": f"{result['train_seconds']:.0f} s, {rate}",
        "All in all": f"{result['total_seconds']:.0f} s",
        "Devices": f"{jax.device_count()} × {jax.devices()[0].device_kind}",
        "Model": f"{out / EXPORT}, a Hugging Face directory",
    }
    bits = {name: result[f"{name}_bits_per_byte"] for name in ("gzip", "bzip2", "xz")}
    bits = {"this model": result["bits_per_byte"], **bits}
    meaning = MEANING.format(model=bits["this model"], gzip=bits["gzip"], xz=bits["xz"])
    sections = [
        Section(heading="What the model learned: bits per byte", content=bits, note=meaning),
        Section(heading="Text that the model wrote", content=samples),
        Section(heading="Next steps", content=_next_steps(out)),
        Section(heading="The run", content=facts, note=str(resume)),
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
