# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Look into a Hugging Face directory, rewrite it, or compare two.

A directory comes from transformers, from `dovetail_models.save`, or from a finished run of
`dovetail train`.
"""

import argparse
import dataclasses
import difflib
import json
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dovetail_stack._command import DONE, FAILED, add_action, add_json
from dovetail_stack.commands.arguments import add_accepted, add_model, add_new_directory, check_new
from dovetail_stack.model_directory import locate, refuse_quantized

FILE_BYTES = 5_000_000_000  # the most that transformers puts into a file
ORBAX = ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt")


def add(parser: argparse.ArgumentParser) -> None:
    """Declares an action each."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, declare in {"inspect": _inspect, "convert": _convert, "diff": _diff}.items():
        add_action(actions, name, declare)


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns its exit code."""
    return args.act(args)


def _inspect(parser: argparse.ArgumentParser) -> None:
    """Show family, parameters, bytes and cost of a directory; reads only the headers of its files.

    With --mesh, also the placement of the parameters on those devices, which need not exist.
    """
    add_model(parser)
    parser.add_argument("--mesh", metavar="AXIS=N", help="axes and sizes, as in fsdp=8,tensor=2")
    parser.add_argument("--length", type=int, help="tokens of a sequence, for its cost")
    add_json(parser)
    parser.set_defaults(act=inspect)


def _convert(parser: argparse.ArgumentParser) -> None:
    """Rewrite a directory: cast, dequantize, in files of another size; tokenizer files are copied.

    The model passes through the host's memory. The new directory is written whole or not at all.
    """
    add_model(parser)
    add_new_directory(parser)
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="dtype of all parameters (unchanged; quantised ones: bfloat16)",
    )
    parser.add_argument(
        "--file-bytes", type=int, default=FILE_BYTES, help=f"most bytes of a file ({FILE_BYTES})"
    )
    add_json(parser)
    parser.set_defaults(act=convert)


def _diff(parser: argparse.ArgumentParser) -> None:
    """Compare two directories: configurations, parameters that one lacks, largest differences."""
    parser.add_argument("a", type=Path, metavar="A", help="a run, or a Hugging Face directory")
    parser.add_argument("b", type=Path, metavar="B", help="another")
    add_accepted(parser)
    add_json(parser)
    parser.set_defaults(act=diff)


def inspect(args: argparse.Namespace) -> int:
    """Prints an `Inspection`."""
    import dovetail_models

    mesh = None if args.mesh is None else parse_mesh(args.mesh)
    inspected = dovetail_models.inspect(_directory(args.model), mesh=mesh, length=args.length)
    print(json.dumps(inspected.json(), indent=2) if args.json else inspected)
    return 0


def convert(args: argparse.Namespace) -> int:
    """Reads, casts and writes; refuses an OUT that exists before it reads."""
    import dovetail_models
    from dovetail_models.hf.save import BESIDE

    path = _directory(args.model)
    check_new(args.out)
    if args.file_bytes < 1:
        raise ValueError(
            f"a file holds at least one byte, got --file-bytes {args.file_bytes}: leave it out"
        )
    with tqdm(total=2, unit="step", desc="read") as bar:
        model = _read(path, dtype=args.dtype)
        bar.update()
        bar.set_description("write")
        like = path if any((path / name).is_file() for name in BESIDE) else None  # a tokenizer
        dovetail_models.save(model, args.out, like=like, file_bytes=args.file_bytes)
        bar.update()
    if args.json:
        print(json.dumps(dovetail_models.inspect(args.out).json(), indent=2))
    return 0


def diff(args: argparse.Namespace) -> int:
    """Prints a `Difference`."""
    import dovetail_models

    difference = dovetail_models.diff(_directory(args.a), _directory(args.b))
    content = {"equal": not difference, **dataclasses.asdict(difference)}
    print(json.dumps(content, indent=2, default=str) if args.json else difference)
    return FAILED if difference else DONE


def parse_mesh(text: str) -> Any:
    """Parses `fsdp=8,tensor=2` into an abstract mesh. Raises ValueError for unknown axes."""
    import jax
    from jax.sharding import AbstractMesh, AxisType

    from dovetail_models import RULES

    known = set(jax.tree.leaves([axes for _, axes in RULES]))
    axes: dict[str, int] = {}
    for entry in text.split(","):
        name, _, size = entry.partition("=")
        if name not in known or name in axes or not size.isdigit() or int(size) < 1:
            near = difflib.get_close_matches(name, sorted(known - {name}), n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(
                f"a mesh is axes among {', '.join(sorted(known))}, each once with its size, as in "
                f"fsdp=8,tensor=2; got {entry!r} in {text!r}{meant}"
            )
        axes[name] = int(size)
    kinds = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def _read(path: Path, *, dtype: str | None) -> Any:
    """Reads a decoder or encoder to the host's memory, cast to `dtype` if given."""
    import jax

    from dovetail_models import Decoder, abstract, load, load_encoder

    reader = load if isinstance(abstract(path), Decoder) else load_encoder
    with jax.default_device(jax.devices("cpu")[0]):
        return reader(path, dtype=dtype)


def _directory(path: Path) -> Path:
    """Returns the Hugging Face directory. Raises ValueError for other kinds of checkpoint."""
    from dovetail_models.hf.hub import resolve

    path = resolve(path)
    if any((path / name).exists() for name in ORBAX):
        raise ValueError(
            f"a model is a directory with config.json and *.safetensors, got {str(path)!r}, an "
            "Orbax checkpoint: restore it with the library that wrote it, then "
            "dovetail_models.save(model, path)"
        )
    directory = locate(path)
    refuse_quantized(directory, "dovetail models")
    return directory
