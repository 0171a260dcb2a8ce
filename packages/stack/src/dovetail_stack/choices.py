# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Questions of `dovetail eval --choices FILE`, checked before the model is loaded.

Each line is an object with "prompt", a text, or "messages" (and "tools") for the chat template of
the model; "choices", texts; and "answer", the index of the right one, from 0.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail_data import Corrupt, Pretrained, Prompt, Template
from dovetail_infer.batch.requests import MESSAGES, PROMPT, TOOLS
from dovetail_stack.prompts import check_ids
from dovetail_stack.recipes.options import RefusedError
from dovetail_train import Question

CHOICES, ANSWER = "choices", "answer"
_KEYS = (PROMPT, MESSAGES, TOOLS, CHOICES, ANSWER)
_EXAMPLE = f'{{"{PROMPT}": "1 + 1 =", "{CHOICES}": ["2", "3"], "{ANSWER}": 0}}'


def read(
    file: Path,
    tokenizer: Pretrained,
    template: Callable[[], Template],
    *,
    length: int,
    vocab_size: int,
) -> list[Question]:
    """Reads all questions.

    A space stands between a prompt and its choices, as in lm-evaluation-harness. A choice after
    messages is what the assistant says.

    Args:
        file: JSON lines.
        tokenizer: The tokenizer of the model.
        template: Returns the chat template, if a line has messages.
        length: Largest number of tokens that the model reads.
        vocab_size: Rows of the model's embedding.

    Raises:
        RefusedError: A line is no question, or a choice is longer than `length`.
        ValueError: The template is needed, and missing or wrong.
    """
    lines = file.read_bytes().splitlines()
    if not lines:
        raise RefusedError(
            f"a file of choices must have a line, got an empty {str(file)!r}: write {_EXAMPLE}"
        )
    encoder: Prompt | None = None
    questions = []
    for number, raw in enumerate(lines, start=1):
        where = f"line {number} of {str(file)!r}"
        line = _checked(raw, where)
        asked: dict[str, Any] = {CHOICES: line[CHOICES], ANSWER: line[ANSWER]}
        if PROMPT in line:
            question = Question(context=line[PROMPT], **asked)
            read_ids = tokenizer.encode([line[PROMPT]])[0].ids
        else:
            encoder = encoder or Prompt(tokenizer, template=template(), field=MESSAGES)
            (document,) = encoder([{k: line[k] for k in (MESSAGES, TOOLS) if k in line}])
            if document is None or isinstance(document, Corrupt):
                raise RefusedError(f"{where}: {document.error if document else 'no token'}")
            read_ids = document.arrays["tokens"]
            question = Question(context=read_ids.tolist(), delimiter="", **asked)
        texts = [question.delimiter + choice for choice in question.choices]
        for ids in (read_ids, *(encoding.ids for encoding in tokenizer.encode(texts))):
            check_ids(ids, tokenizer, vocab_size, where=where)
            if ids is not read_ids and len(ids) > length:
                raise RefusedError(
                    f"{where} must have choices of at most {length} tokens, which the model reads, "
                    f"got one of {len(ids)}: write a shorter one"
                )
        questions.append(question)
    return questions


def _checked(raw: bytes, where: str) -> dict[str, Any]:
    """Returns the object of a line."""
    try:
        line = json.loads(raw)
    except ValueError as error:
        raise RefusedError(f"{where} must be JSON, got {error}: correct it") from error
    if not isinstance(line, dict) or (PROMPT in line) == (MESSAGES in line):
        fault = f'be an object with either "{PROMPT}" or "{MESSAGES}", got {line}'
    elif unknown := [key for key in line if key not in _KEYS]:
        fault = f'have keys of {", ".join(_KEYS)}, got "{unknown[0]}"'
    elif not isinstance(line.get(PROMPT, ""), str):
        fault = f'have a text as "{PROMPT}", got {line[PROMPT]}'
    elif not _are_texts(line.get(CHOICES)):
        fault = f'have at least two texts as "{CHOICES}", got {line.get(CHOICES)}'
    elif line.get(ANSWER) not in range(len(line[CHOICES])) or isinstance(line[ANSWER], bool):
        last = len(line[CHOICES]) - 1
        fault = f'have the index of a choice, 0 to {last}, as "{ANSWER}", got {line.get(ANSWER)!r}'
    else:
        return line
    raise RefusedError(f"{where} must {fault:.160}: write {_EXAMPLE}")


def _are_texts(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(text, str) and text for text in value)
    return texts and len(value) > 1
