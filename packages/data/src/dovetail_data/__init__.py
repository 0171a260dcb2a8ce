# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Text to exact, resumable, packed batches, on Grain and ArrayRecord."""

from dovetail_data.batch import Batch as Batch
from dovetail_data.batch import check_batch as check_batch
from dovetail_data.batches import batches as batches
from dovetail_data.bpe import train_bpe as train_bpe
from dovetail_data.corpus import Corpus as Corpus
from dovetail_data.corpus import CorruptDocument as CorruptDocument
from dovetail_data.corpus import CorruptError as CorruptError
from dovetail_data.corpus import CorruptRecord as CorruptRecord
from dovetail_data.device import to_device as to_device
from dovetail_data.encode import Document as Document
from dovetail_data.encode import Encoder as Encoder
from dovetail_data.encode import Text as Text
from dovetail_data.pack import pack as pack
from dovetail_data.pack import pad as pad
from dovetail_data.record import Field as Field
from dovetail_data.record import ids as ids
from dovetail_data.rows import Rows as Rows
from dovetail_data.rows import Span as Span
from dovetail_data.sources import Corrupt as Corrupt
from dovetail_data.sources import Part as Part
from dovetail_data.sources import Source as Source
from dovetail_data.sources import jsonl as jsonl
from dovetail_data.sources import records as records
from dovetail_data.sources import text as text
from dovetail_data.stats import Stats as Stats
from dovetail_data.tokenizer import Bytes as Bytes
from dovetail_data.tokenizer import Encoding as Encoding
from dovetail_data.tokenizer import Pretrained as Pretrained
from dovetail_data.tokenizer import Tokenizer as Tokenizer
from dovetail_data.tokenizer import token_bytes as token_bytes
from dovetail_data.write import Progress as Progress
from dovetail_data.write import write as write
