# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The file index.json of a corpus. Its presence marks the corpus as finished.

It has the sizes and digests of all other files, and its last line is the sha256 of the bytes before
it. Any changed byte is therefore found: in index.json itself and in the small files when the corpus
is opened, in the tables too, and in the records when they are read.
"""

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail_data._durable import write_file
from dovetail_data.damage import DamageError

NAME = "index.json"
PARTS = "parts.json"
FORMAT = "dovetail-corpus/2"
TOTALS = ("documents", "tokens", "text_bytes", "dropped")

_FILES = "files"  # digests of the files beside the shards; older corpora have none
_DIGEST = "sha256"
_LAST_LINE = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n')
_logger = logging.getLogger(__name__)


def read_index(directory: Path) -> dict[str, Any]:
    """Returns the verified index of a finished corpus.

    The index of an older version has no digest of its own. The fingerprint and the totals are then
    computed again, and the rest is read as it is, with a warning.

    Raises:
        ValueError: The corpus is not finished, or has another format.
        DamageError: The file is damaged.
    """
    path = directory / NAME
    if not path.is_file():
        raise ValueError(
            f"a corpus must be finished: got directory={directory} without {NAME}. "
            "Call write(...) with this directory; it goes on where it stopped."
        )
    content = path.read_bytes()
    index = _parsed(content, path)
    digested = _is_digested(content)
    if digested is False:
        raise damaged(path, f"another {_DIGEST} than its last line says")
    if digested is None and (_FILES in index or _DIGEST in index):
        raise damaged(path, f"a last line that is no {_DIGEST}")
    if index.get("format") != FORMAT:
        raise ValueError(
            f"a corpus must have the format {FORMAT!r}: got format={index.get('format')!r} in "
            f"{directory}. Write it again with this version."
        )
    if digested is None:
        _check_older(index, path)
    return index


def is_older(index: dict[str, Any]) -> bool:
    """Whether an index is of a version that did not write digests of all files."""
    return _FILES not in index


def warn_older(directory: Path) -> None:
    """Logs that a corpus has no digest of its index, and the command that adds it."""
    _logger.warning(
        "a corpus should have a digest of all its files: got %s, of an older version. Add it with "
        "python -m dovetail_data verify %s --add.",
        directory,
        directory,
    )


def damaged(path: str | Path, reason: str) -> DamageError:
    """Returns the error for a file that differs from the one that was written."""
    return DamageError(
        f"a corpus's files must be as they were written: got {path} with {reason}. Copy the "
        "directory again, or delete it and write it anew."
    )


def check_file(directory: Path, name: str, entry: dict[str, Any]) -> None:
    """Raises DamageError unless a file has the size and the digest of its entry.

    Args:
        directory: The corpus.
        name: Name of the file.
        entry: Its size under "bytes" and its digest under "sha256".
    """
    check_size(directory, name, entry)
    if entry_of(directory / name)[_DIGEST] != entry[_DIGEST]:
        raise damaged(directory / name, f"another {_DIGEST} than {NAME} says")


def check_size(directory: Path, name: str, entry: dict[str, Any]) -> None:
    """Raises DamageError unless a file has the size of its entry.

    Args:
        directory: The corpus.
        name: Name of the file.
        entry: Its size under "bytes".
    """
    path = directory / name
    size = path.stat().st_size if path.exists() else None
    if size != entry["bytes"]:
        raise DamageError(
            f"a corpus's files must be whole: got {path} with bytes={size}, {NAME} says "
            f"{entry['bytes']}. Copy the directory again, or delete it and write it anew."
        )


def small_files(index: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns size and digest of the files beside the shards; none for an older corpus."""
    return index.get(_FILES, {})


def shard_files(index: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Returns size and digest of the "records" or the "table" of each shard, by file."""
    return {shard[kind]["file"]: shard[kind] for shard in index["shards"]}


def read_parts(directory: Path, index: dict[str, Any], *, least: int = 0) -> list[str]:
    """Returns the names of the input parts.

    Args:
        directory: The corpus.
        index: Its index.
        least: Number of parts that its tables refer to.

    Raises:
        DamageError: The file is damaged.
    """
    path = directory / PARTS
    entry = small_files(index).get(PARTS)
    if entry is not None:
        check_file(directory, PARTS, entry)
    names = _parsed(path.read_bytes(), path, list)
    if not all(isinstance(name, str) for name in names):
        raise damaged(path, "other values than names")
    if len(names) < least:
        raise damaged(path, f"{len(names)} of {least} names")
    return names


def write_index(
    directory: Path,
    *,
    shards: Sequence[dict[str, Any]],
    parts: Sequence[str],
    facts: dict[str, Any],
    others: Sequence[str],
) -> None:
    """Finishes a corpus by writing its index.

    The fingerprint of the corpus is the sha256 of everything its readers see: layout, manifest and
    documents.

    Args:
        directory: The corpus.
        shards: The ledger's entry of each shard.
        parts: Names of the input parts.
        facts: Layout, manifest and fingerprints, recorded as they are.
        others: Names of the other files of the corpus, which are written already.
    """
    totals = {name: sum(shard[name] for shard in shards) for name in TOTALS}
    corrupt = sum(len(shard["corrupt"]) for shard in shards)
    if totals["documents"] == 0:
        raise ValueError(
            f"a corpus must have a document: got documents=0, dropped={totals['dropped']}, "
            f"corrupt={corrupt}. Give a source that holds some, and another directory."
        )
    index = {
        "format": FORMAT,
        "fingerprint": _fingerprint(facts["layout"], facts["manifest"], shards),
        **totals,
        "corrupt": corrupt,
        **facts,
        "shards": list(shards),
    }
    write_json(directory / PARTS, list(parts))
    write_digested(directory, index, others=[PARTS, *others])


def write_digested(directory: Path, index: dict[str, Any], *, others: Sequence[str]) -> None:
    """Writes index.json with the digests of the other files and of itself.

    Args:
        directory: The corpus.
        index: The index without these digests.
        others: Names of the files beside the shards.
    """
    files = {name: entry_of(directory / name) for name in sorted(others)}
    body = json.dumps({**index, _FILES: files}, indent=1).encode()[: -len(b"\n}")]
    write_file(directory / NAME, body + _last_line(body))


def entry_of(path: Path) -> dict[str, Any]:
    """Returns size and sha256 of a file."""
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"bytes": stream.tell(), _DIGEST: digest}


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, durably."""
    write_file(path, json.dumps(value, indent=1).encode() + b"\n")


def _last_line(body: bytes) -> bytes:
    return b',\n "sha256": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode()


def _is_digested(content: bytes) -> bool | None:
    """Whether an index has the digest in its last line; None without such a line."""
    size = len(_last_line(b""))
    body, last = content[:-size], content[-size:]
    return last == _last_line(body) if _LAST_LINE.fullmatch(last) else None


def _fingerprint(layout: Any, manifest: Any, shards: Sequence[dict[str, Any]]) -> str:
    contents = [shard[kind]["sha256"] for shard in shards for kind in ("records", "table")]
    seen = json.dumps([FORMAT, layout, manifest, contents])
    return hashlib.sha256(seen.encode()).hexdigest()


def _parsed(content: bytes, path: Path, kind: type = dict) -> Any:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"other bytes than JSON ({error})") from error
    if not isinstance(value, kind):
        raise damaged(path, f"a {type(value).__name__} in the place of a {kind.__name__}")
    return value


def _check_older(index: dict[str, Any], path: Path) -> None:
    """Raises DamageError unless an older index agrees with itself."""
    try:
        shards = index["shards"]
        expected: dict[str, Any] = {name: sum(shard[name] for shard in shards) for name in TOTALS}
        expected["corrupt"] = sum(len(shard["corrupt"]) for shard in shards)
        expected["fingerprint"] = _fingerprint(index["layout"], index["manifest"], shards)
        for shard in shards:
            for kind in ("records", "table"):
                Path(shard[kind]["file"], str(int(shard[kind]["bytes"])))
            for record in shard["corrupt"]:
                str(record["where"] + record["error"])
            if any(set(record) != {"where", "error"} for record in shard["corrupt"]):
                raise ValueError("other entries of a corrupt record")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"other entries than an index has ({error!r})") from error
    wrong = [name for name, value in expected.items() if index.get(name) != value]
    if wrong:
        raise damaged(path, f"a {wrong[0]} that does not follow from its shards")
