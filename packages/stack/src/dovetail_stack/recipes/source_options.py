# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of recipes that begin from a model: its directory, or its teacher's."""

import os
from dataclasses import dataclass
from typing import Any, Literal

from dovetail_stack.recipes.fields import absolute, declared, needed
from dovetail_stack.recipes.options import COMPUTE

_MODEL = "Hugging Face directory with a tokenizer, a finished run, or a Hub id"
_ALLOW = "an unknown key of its config.json to accept; may be repeated"
_IGNORE = "extra tensors to leave out, as '**.inv_freq'; may be repeated"
_KEYS: dict[str, Any] = {"type": str, "action": "append", "metavar": "KEY"}
_PATTERNS: dict[str, Any] = {**_KEYS, "metavar": "PATTERN"}


def model_path(path: str) -> str:
    """Returns the absolute path of a directory; an id of the Hugging Face Hub stays as it is."""
    if os.path.exists(path) or path.count("/") != 1:
        return absolute(path)
    from dovetail_models.hf.hub import is_id

    return path if is_id(path) else absolute(path)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The model to train on.

    Args:
        model: Hugging Face directory with a tokenizer, a finished run, or a Hub id.
        allow: Unknown keys of its config.json to accept.
        ignore: Patterns of extra tensors to leave out.
    """

    model: str = needed(_MODEL, type=model_path, metavar="MODEL")
    allow: tuple[str, ...] = declared((), _ALLOW, **_KEYS)
    ignore: tuple[str, ...] = declared((), _IGNORE, **_PATTERNS)


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """The teacher and its weight in the loss.

    Args:
        teacher: Hugging Face directory with a tokenizer, a finished run, or a Hub id.
        alpha: Weight of the teacher in the loss, in [0, 1]; the text has 1 - alpha.
        temperature: Divides the logits of both models; above 0.
        teacher_precision: Dtype of the teacher's parameters.
        allow: Unknown keys of the teacher's config.json to accept.
        ignore: Patterns of extra tensors of the teacher to leave out.
    """

    teacher: str = needed(_MODEL, type=model_path, metavar="MODEL")
    alpha: float = declared(
        0.5,
        "weight of the teacher in the loss, in [0, 1]; the text has the rest",
        metavar="WEIGHT",
    )
    temperature: float = declared(2.0, "divides the logits of both models; above 0")
    teacher_precision: Literal["float32", "bfloat16"] = declared(
        "float32", "dtype of the teacher's parameters", choices=COMPUTE
    )
    allow: tuple[str, ...] = declared((), _ALLOW, **_KEYS)
    ignore: tuple[str, ...] = declared((), _IGNORE, **_PATTERNS)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or not self.temperature > 0:
            raise ValueError(
                f"alpha must lie in [0, 1] and temperature above 0, got alpha={self.alpha}, "
                f"temperature={self.temperature}: try alpha=0.5, temperature=2"
            )
