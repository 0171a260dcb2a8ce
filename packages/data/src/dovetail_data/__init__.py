# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text to exact, resumable, packed batches, on Grain and ArrayRecord.

A source reads files as records, and an encoder turns each record into a document of ids. `write`
stores the documents as a corpus, once. Rows cut, pack or mix the documents of corpora, and
`batches` iterates over rows. Each step can be used alone.

    >>> from pathlib import Path
    >>> from dovetail_data import Bytes, Text, batches, pack, text, write
    >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
    >>> corpus = write(text("a.txt"), "corpus", encoder=Text(Bytes()))
    >>> it = batches(pack(corpus, length=8), global_batch=2, seed=0)
    >>> next(it)["tokens"].shape
    (2, 8)

- Sources of records: `text`, `jsonl`, `parquet`, `arrow`, `array_record`, `bagz`,
  `hf_directory`, `tfds`. `select_text` finds the files of text in a directory.
- Splits into train and held-out: `hold_out` of a source, `hold_out_files`.
- A sample of files: `draw_files`.
- Encoders: `Text`, `Chat` (with a `Template`), `Preference`, `Prompt`, `Contrast`,
  `Image`.
- A model with fewer ids than its tokenizer: `within`, `check_ends`, `foreign_id`.
- Tokenizers: `Bytes`, `Pretrained`, `train_bpe`, `token_bytes`, `vocabulary_bytes`.
- Corpora: `write`, `Corpus`, `verify`; both sides of a split: `write_sides`, `Corpora`.
- Rows: `pack`, `pad`, `pairs`, `prompts`, `contrasts`, `images`, `mix`; `Rows.map` changes any.
- Batches: `batches`, `to_device`, `check_batch`.
- Inspection: `budget`, `show`; an iterator's `explain` and `stats`.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_data._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_data._suggestions import public_names as _public_names
from dovetail_data.batching.batch import Batch, check_batch
from dovetail_data.batching.batches import batches
from dovetail_data.batching.device import to_device
from dovetail_data.batching.stats import IteratorStats
from dovetail_data.corpus.corpus import Corpus, CorruptDocument, CorruptError, CorruptRecord
from dovetail_data.corpus.tokenizer_files import train_bpe
from dovetail_data.corpus.verifying import IntegrityReport, verify
from dovetail_data.damage import DamageError
from dovetail_data.encode import Chat, Contrast, Document, Encoder, Image, Preference, Prompt, Text
from dovetail_data.encode.vocabulary import check_ends, foreign_id, within
from dovetail_data.held_out import hold_out
from dovetail_data.mixture.mix import Mixture, mix
from dovetail_data.mixture.stage import Stage
from dovetail_data.record import Field, ids, values
from dovetail_data.rows.budget import Budget, SourceBudget, budget
from dovetail_data.rows.contrast_rows import contrasts
from dovetail_data.rows.image_rows import images
from dovetail_data.rows.pack import pack, pad
from dovetail_data.rows.pair_rows import pairs
from dovetail_data.rows.prompt_rows import prompts
from dovetail_data.rows.rows import Rows, Span
from dovetail_data.showing.inspecting import Shown, show
from dovetail_data.sources import (
    Corrupt,
    Part,
    Source,
    array_record,
    arrow,
    bagz,
    hf_directory,
    jsonl,
    parquet,
    records,
    text,
    tfds,
)
from dovetail_data.sources.text import TextSelection, draw_files, hold_out_files, select_text
from dovetail_data.tokenizing.template import Rendered, Template
from dovetail_data.tokenizing.token_bytes import token_bytes, vocabulary_bytes
from dovetail_data.tokenizing.tokenizer import (
    Bytes,
    ChatTokenizer,
    Encoding,
    Pretrained,
    Tokenizer,
)
from dovetail_data.writing.sides import Corpora, write_sides
from dovetail_data.writing.write import Progress, write

__all__ = [  # noqa: RUF022  (grouped by topic)
    # Sources of records
    "text",
    "jsonl",
    "parquet",
    "arrow",
    "array_record",
    "bagz",
    "hf_directory",
    "tfds",
    "records",
    "select_text",
    "TextSelection",
    "hold_out",
    "hold_out_files",
    "draw_files",
    "Source",
    "Part",
    "Corrupt",
    # Encoders
    "Text",
    "Chat",
    "Template",
    "Rendered",
    "Preference",
    "Prompt",
    "Contrast",
    "Image",
    "Encoder",
    "Document",
    "Field",
    "ids",
    "values",
    "within",
    "check_ends",
    "foreign_id",
    # Tokenizers
    "Bytes",
    "Pretrained",
    "train_bpe",
    "token_bytes",
    "vocabulary_bytes",
    "Tokenizer",
    "ChatTokenizer",
    "Encoding",
    # Corpora on disk
    "write",
    "write_sides",
    "Corpora",
    "Corpus",
    "verify",
    "IntegrityReport",
    "Progress",
    "CorruptRecord",
    "CorruptDocument",
    "CorruptError",
    "DamageError",
    # Rows and mixtures
    "pack",
    "pad",
    "pairs",
    "prompts",
    "contrasts",
    "images",
    "mix",
    "Stage",
    "Mixture",
    "Rows",
    # Batches
    "batches",
    "to_device",
    "check_batch",
    "Batch",
    "IteratorStats",
    # Inspection
    "budget",
    "Budget",
    "SourceBudget",
    "show",
    "Shown",
    "Span",
]

__version__ = _version("dovetail-data")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(__name__, __all__, **_ELSEWHERE)
