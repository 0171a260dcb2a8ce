# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The directory of a model: that of Hugging Face files, of a run's export, or of a Hub id."""

from pathlib import Path

RUN_FILE = "run.json"  # of `dovetail train`
EXPORT = "hf"  # where `dovetail train` exports, inside the run
QUANTIZED = "quantization.json"  # what a directory of `dovetail quantize` has


def refuse_quantized(directory: Path, command: str) -> None:
    """Raises ValueError for an output of `dovetail quantize`."""
    if (directory / QUANTIZED).is_file():
        raise ValueError(
            f"{command} needs the weights that were not quantized yet, got {str(directory)!r} with "
            f"{QUANTIZED}: name the directory that it was made from"
        )


def locate(path: Path) -> Path:
    """Returns the Hugging Face directory: `path`, the export of the run `path`, or a Hub id's."""
    from dovetail_models.hf.errors import FilesError
    from dovetail_models.hf.foreign import conversion
    from dovetail_models.hf.hub import resolve

    path = resolve(path)
    for directory in (path, path / EXPORT):
        if (directory / "config.json").is_file():
            if any(directory.glob("*.safetensors")):
                return directory
            raise FilesError(
                f"a model is config.json with *.safetensors, got {str(directory)!r} without any: "
                + (conversion(directory) or "copy the whole directory, or name another")
            )
    if (path / RUN_FILE).is_file():
        raise ValueError(
            f"the run {str(path)!r} has not exported a model yet: let it finish with "
            f"dovetail train --out {path}"
        )
    raise ValueError(
        f"a model is a directory with config.json, or a run with {EXPORT}/config.json; "
        f"got {str(path)!r}{'' if path.exists() else ', which does not exist'}: "
        + (conversion(path) or "pass a finished run of dovetail train, or a Hugging Face directory")
    )
