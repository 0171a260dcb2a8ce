# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: UTF-8 bytes, or a tokenizer.json of Hugging Face `tokenizers`.

Text never yields a special id. A document with the characters "<|eos|>" is encoded like any other
text, so no input can end itself or start another role.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_integers, require_path, require_tokenizers, wrong
from dovetail_data.damage import DamageError
from dovetail_data.tokenizing import special_ids
from dovetail_data.tokenizing.slices import is_local, slices

LONG_CHARACTERS = 1 << 22  # of a text that is encoded in slices
SLICE_CHARACTERS = 1 << 20  # a tokenizer takes about 100 bytes of memory for each


class Encoding:
    """The ids of one text and the characters that they came from.

    Args:
        ids: The ids, i32[n].
        spans: Computes `spans`, on first use: pretraining never needs them, and they cost as much
            as the ids.

    Attributes:
        ids: The ids, i32[n].
        spans: [start, stop) in characters of each id, i32[n, 2].
    """

    def __init__(self, ids: np.ndarray, spans: Callable[[], np.ndarray]) -> None:
        self.ids: Int32[np.ndarray, "n"] = ids
        self._spans = spans

    @functools.cached_property
    def spans(self) -> Int32[np.ndarray, "n 2"]:
        return self._spans()


@runtime_checkable
class Tokenizer(Protocol):
    """The interface that encoders use. Implementations must pickle."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Digest. It changes when the ids of any text change."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        """Encodes texts without bos and eos; the encoder adds them."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text. Special ids add nothing; bytes that are not UTF-8 become U+FFFD."""
        ...


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that also reads the output of chat templates, special tokens included."""

    def encode_with_specials(self, texts: Sequence[str]) -> list[Encoding]:
        """Encodes like `encode`, but the text of a special token becomes its id.

        Use it only for text whose author may write special tokens: a template may, a message may
        not.
        """
        ...

    def find_special(self, text: str) -> str | None:
        """Returns the first special token that `encode_with_specials` reads in `text`."""
        ...


class Bytes:
    """A tokenizer with one id per UTF-8 byte, bos 256 and eos 257. It needs no training.

    Chat templates write the two special tokens as <|bos|> and <|eos|>.
    """

    vocab_size = 258
    bos_id: int | None = 256
    bos_token = "<|bos|>"
    eos_id = 257
    fingerprint = "bytes/1"
    _specials: Mapping[str, int] = {"<|bos|>": 256, "<|eos|>": 257}

    def __repr__(self) -> str:
        return "Bytes()"

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        _check_texts(texts)
        return [_encode_bytes(text) for text in texts]

    def encode_slices(self, text: str) -> Iterator[Int32[np.ndarray, "_"]]:
        """Yields the ids of a long text in consecutive pieces, in memory for one piece."""
        for start in range(0, len(text), SLICE_CHARACTERS):
            yield _encode_bytes(text[start : start + SLICE_CHARACTERS]).ids

    def encode_with_specials(self, texts: Sequence[str]) -> list[Encoding]:
        _check_texts(texts)
        return [self._with_specials(text) for text in texts]

    def _with_specials(self, text: str) -> Encoding:
        ids, spans, start = [], [], 0
        for piece in _pattern(self._specials).split(text):
            stop = start + len(piece)
            if piece in self._specials:
                ids.append(np.array([self._specials[piece]], np.int32))
                spans.append(np.array([[start, stop]], np.int32))
            else:
                encoded = _encode_bytes(piece)
                ids.append(encoded.ids)
                spans.append(encoded.spans + np.int32(start))
            start = stop
        return Encoding(np.concatenate(ids), functools.partial(np.concatenate, spans))

    def find_special(self, text: str) -> str | None:
        match = _pattern(self._specials).search(text)
        return match and match[0]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        array = require_integers("ids", ids)
        return array[array < 256].astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def decode_with_specials(self, ids: Sequence[int] | np.ndarray) -> str:
        """Decodes like `decode`, with the names of special ids at their places."""
        table = {i: name.encode() for name, i in self._specials.items()}
        table |= {i: bytes([i]) for i in range(256)}
        content = b"".join([table.get(i, b"") for i in require_integers("ids", ids).tolist()])
        return content.decode("utf-8", errors="replace")


def _pattern(specials: Iterable[str]) -> re.Pattern[str]:
    """Matches each of the texts, the longest first. Without texts it matches nothing."""
    longest_first = sorted(specials, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


def _encode_bytes(text: str) -> Encoding:
    ids = np.frombuffer(_utf8(text), np.uint8).astype(np.int32)

    def spans() -> np.ndarray:
        continues = (ids & 0xC0) == 0x80
        characters = np.cumsum(~continues, dtype=np.int32) - 1
        return np.stack([characters, characters + 1], axis=1).astype(np.int32)

    return Encoding(ids, spans)


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text must be Unicode without lone surrogates: got {error.object[error.start]!r} at "
            f'character {error.start}. Clean it: text.encode("utf-8", "replace").decode().'
        ) from error


def _check_texts(texts: Sequence[str]) -> None:
    """Raises TypeError for one string, whose characters would be encoded one by one."""
    sequence = isinstance(texts, Sequence) and not isinstance(texts, str | bytes)
    if not sequence or not all(isinstance(text, str) for text in texts):
        raise wrong("texts", "a sequence of strings", texts, 'Pass ["a text", ..].')


def _check_unicode(texts: Sequence[str]) -> None:
    for text in texts:
        if not text.isascii():
            _utf8(text)


@_elsewhere.pretrained
class Pretrained:
    """A tokenizer of Hugging Face `tokenizers`. Needs the extra `tokenizers`.

    Args:
        path: A tokenizer.json, or its directory.
        bos: Name of the special token at the start of a text, such as "<s>". Default: the one that
            the file's post_processor puts there, as transformers does. A tokenizer may put none,
            though a bos token has a name.
        eos: Name of the token at the end of a document. Default: the one in the
            tokenizer_config.json beside it, else the usual one of the vocabulary. Required.

    Attributes:
        bos_id: Id that begins a text, or None.
        bos_token: Name of the bos token, for chat templates: they may write it where no text has
            it. None: it has no name.
        eos_id: Id that ends a document.
        vocab_size: Largest id + 1.
        content: The text of the tokenizer.json.

    Raises:
        ValueError: The file is missing, a name is not in the vocabulary, no eos is known, or the
            post_processor puts several tokens before a text.
        ImportError: The package `tokenizers` is missing.

    Example:

        >>> from dovetail_data import train_bpe
        >>> tokenizer = train_bpe(["to be, or not to be"] * 9, "bpe", vocab_size=264)
        >>> Pretrained("bpe")
        Pretrained(vocab_size=264, bos_id=0, eos_id=1)
    """

    def __init__(self, path: str | Path, *, bos: str | None = None, eos: str | None = None) -> None:
        file = tokenizer_file(require_path("path", path))
        if not file.is_file():
            raise ValueError(
                f"a tokenizer must exist: got path={str(path)!r} without {file.name}. Give a "
                "tokenizer.json or its directory, or make one with train_bpe."
            )
        content = file.read_text(encoding="utf-8")
        config = special_ids.read_config(file.with_name("tokenizer_config.json"))
        library = require_tokenizers()
        try:
            whole = library.Tokenizer.from_str(content)
        except Exception as error:  # the library raises no other class
            raise DamageError(
                f"a tokenizer must be a file of the library tokenizers, got path={str(file)!r} "
                f"({error}). Fetch it again, or make one with train_bpe."
            ) from error
        vocabulary = whole.get_vocab(with_added_tokens=True)
        name = special_ids.name_of(config, "eos_token") if eos is None else eos
        eos_id = special_ids.find(vocabulary, name, special_ids.USUAL_EOS, argument="eos")
        if eos_id is None:
            raise ValueError(
                f"a tokenizer must have an end-of-document token: got {file} with none of "
                f'{list(special_ids.USUAL_EOS)}. Pass eos= its name, such as eos="<|im_end|>".'
            )
        self.eos_id: int = eos_id
        if bos is None:
            self.bos_id = special_ids.first_id(library, whole, config)
            first = None if self.bos_id is None else whole.id_to_token(self.bos_id)
            self.bos_token = special_ids.name_of(config, "bos_token") or first
        else:
            self.bos_id = special_ids.find(vocabulary, bos, argument="bos")
            self.bos_token = bos
        # Not parsed again: a tokenizer.json of 30 MB takes seconds.
        self._tokenizer = _plain(whole)
        self.vocab_size: int = max(vocabulary.values()) + 1
        specials = f"{self.bos_id}/{self.eos_id}"
        self.fingerprint = hashlib.sha256(f"{content}/{specials}".encode()).hexdigest()
        self.content = content

    def __repr__(self) -> str:
        return (
            f"Pretrained(vocab_size={self.vocab_size}, bos_id={self.bos_id}, eos_id={self.eos_id})"
        )

    @functools.cached_property
    def _specials(self) -> Mapping[str, int]:
        """The special tokens of the tokenizer.json.

        Other tokens added to the vocabulary, as <think> may be, are words like any other: text
        yields them.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: i for i, token in sorted(added.items()) if token.special}

    @functools.cached_property
    def _special(self) -> re.Pattern[str]:
        return _pattern(self._specials)

    @functools.cached_property
    def _disguises(self) -> bool:
        """Whether special tokens are matched in normalized text, such as <s> in a former <S>."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        normalized = any(token.special and token.normalized for token in added)
        return normalized and self._tokenizer.normalizer is not None

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return _load(self.content)

    @functools.cached_property
    def _with_specials(self) -> Any:
        return special_ids.reading(require_tokenizers(), self._tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        # A pickled `tokenizers.Tokenizer` forgets encode_special_tokens.
        loaded = ("_tokenizer", "_with_specials")
        return {key: value for key, value in self.__dict__.items() if key not in loaded}

    def find_special(self, text: str) -> str | None:
        if match := self._special.search(text):
            return match[0]
        if not self._disguises:
            return None
        read, plain = self.encode_with_specials([text])[0], self.encode([text])[0]
        # An unknown character may be a special id too, but that it is without specials as well.
        extra = set(read.ids.tolist()) & set(self._specials.values()) - set(plain.ids.tolist())
        first = next((i for i, token in enumerate(read.ids.tolist()) if token in extra), None)
        return None if first is None else text[slice(*read.spans[first].tolist())]

    def encode_with_specials(self, texts: Sequence[str]) -> list[Encoding]:
        _check_texts(texts)
        _check_unicode(texts)
        # With offsets at once: encoders of chats always need them.
        encodings = self._with_specials.encode_batch(list(texts), add_special_tokens=False)
        return [
            Encoding(np.array(encoding.ids, np.int32), functools.partial(_offsets, encoding))
            for encoding in encodings
        ]

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        _check_texts(texts)
        _check_unicode(texts)
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [
            Encoding(np.array(encoding.ids, np.int32), functools.partial(self._spans, text))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def encode_slices(self, text: str) -> Iterator[Int32[np.ndarray, "_"]]:
        """Yields the ids of a long text in consecutive pieces, in memory for one piece.

        The ids are those of `encode`. A text that the tokenizer.json cannot read in pieces (see
        `slices.py`) is one piece, at about 100 bytes of memory for each byte.
        """
        if is_local(self.content):
            yield from slices(self._tokenizer, text, SLICE_CHARACTERS)
        else:
            yield self.encode([text])[0].ids

    def _spans(self, text: str) -> np.ndarray:
        return _offsets(self._tokenizer.encode(text, add_special_tokens=False))

    def name_of(self, token: int) -> str | None:
        """Returns the name of an id in the vocabulary, such as "<s>"; None for no token."""
        return self._tokenizer.id_to_token(token)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        whole = require_integers("ids", ids).tolist()
        return self._tokenizer.decode(whole, skip_special_tokens=True)

    def decode_with_specials(self, ids: Sequence[int] | np.ndarray) -> str:
        """Decodes like `decode`, with the names of special ids at their places."""
        whole = require_integers("ids", ids).tolist()
        return self._tokenizer.decode(whole, skip_special_tokens=False)


def tokenizer_file(path: str | Path) -> Path:
    """Returns `path` if it names a .json file, else tokenizer.json in that directory."""
    path = Path(path)
    return path if path.suffix == ".json" else path / "tokenizer.json"


def require_tokenizer(tokenizer: object) -> None:
    """Raises TypeError unless `tokenizer` is one. The usual mistakes are a name and a class."""
    if isinstance(tokenizer, type) or not isinstance(tokenizer, Tokenizer):
        raise TypeError(
            f"tokenizer must be a Tokenizer: got tokenizer={tokenizer!r:.200}. Pass Bytes(), or "
            "Pretrained(path) with the directory of a tokenizer.json."
        )


def _load(content: str) -> Any:
    return _plain(require_tokenizers().Tokenizer.from_str(content))


def _plain(tokenizer: Any) -> Any:
    """Returns the tokenizer, changed to encode text alone: no special tokens, and nothing added."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # It would add no ids here, but may cut the leading space of a token off its span.
    tokenizer.post_processor = None
    return tokenizer


def _offsets(encoded: Any) -> np.ndarray:
    # Half the time of np.array of the pairs.
    flat = itertools.chain.from_iterable(encoded.offsets)
    return np.fromiter(flat, np.int32).reshape(-1, 2)
