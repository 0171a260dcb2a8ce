# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights in other formats: the lines of transformers that write them as safetensors."""

import json
from pathlib import Path
from typing import Any

# Patterns of the formats that need lines of their own, most readable first.
_TORCH = "pytorch_model*.bin"
_GGUF = "*.gguf"
_META = "consolidated*.pth"
_OLD = {"tf_model.h5": ("tensorflow", "from_tf"), "flax_model.msgpack": ("flax", "from_flax")}


def conversion(path: Path) -> str | None:
    """Returns what to type for the weights of a directory or a file in another format, or None."""
    if path.suffix == ".gguf" and path.is_file():
        return _gguf(path.parent, path.name)
    if sorted(path.glob(_TORCH)):
        return _told(path, "pytorch_model.bin", f"{_class(path)}.from_pretrained({str(path)!r})")
    if ggufs := sorted(path.glob(_GGUF)):
        return _gguf(path, ggufs[0].name)
    for name, (library, option) in _OLD.items():
        if (path / name).is_file():
            call = f"{_class(path)}.from_pretrained({str(path)!r}, {option}=True)"
            needs = f"transformers 4, the last to read it (pip install 'transformers<5' {library})"
            return _told(path, name, call, needs=needs)
    if metas := sorted(path.glob(_META)):
        out = _beside(path)
        return (
            f"It holds {metas[0].name}, weights in Meta's own format. Type with transformers 4 "
            "(pip install 'transformers<5' torch):\n"
            "  python -m transformers.models.llama.convert_llama_weights_to_hf "
            f"--input_dir {path} --output_dir {out} --model_size 8B --llama_version 3.1\n"
            f"with the size and version of the model, and pass {str(out)!r}."
        )
    return None


def _gguf(folder: Path, name: str) -> str:
    load = f"AutoModelForCausalLM.from_pretrained({str(folder)!r}, gguf_file={name!r})"
    return _told(folder, name, load, tokenizer=f"gguf_file={name!r}", needs="torch and gguf")


def _told(
    path: Path, name: str, load: str, *, tokenizer: str = "", needs: str = "transformers and torch"
) -> str:
    """Returns the lines that open a directory with transformers and write it beside itself."""
    out = str(_beside(path))
    kind = load.partition(".")[0]
    given = f"{str(path)!r}, {tokenizer}" if tokenizer else f"{str(path)!r}"
    lines = (
        f"from transformers import AutoTokenizer, {kind}",
        f"{load}.save_pretrained({out!r})",
        f"AutoTokenizer.from_pretrained({given}).save_pretrained({out!r})",
    )
    text = "\n".join(f"  {line}" for line in lines)
    return f"It holds {name}. Type in Python, with {needs}:\n{text}\nand pass {out!r}."


def _beside(path: Path) -> Path:
    whole = path.resolve()
    return whole.with_name(f"{whole.name}-safetensors")


def _class(path: Path) -> str:
    """Returns the class of transformers that config.json names, or the one of language models."""
    try:
        keys: Any = json.loads((path / "config.json").read_bytes())
        name = keys["architectures"][0]
    except (OSError, ValueError, LookupError, TypeError):
        return "AutoModelForCausalLM"
    causal = not isinstance(name, str) or name.endswith(("ForCausalLM", "LMHeadModel"))
    return "AutoModelForCausalLM" if causal or not name.isidentifier() else name
