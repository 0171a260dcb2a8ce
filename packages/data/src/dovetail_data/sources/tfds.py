# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prepared data sets of TensorFlow Datasets, decoded by the package `tensorflow_datasets`.

The files are ArrayRecord files, which are read as such: a damaged record costs itself alone.
TensorFlow is not needed.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail_data._arguments import require_name, require_package, require_path
from dovetail_data.sources import _files
from dovetail_data.sources.array_record import ArrayRecordFiles, count_of
from dovetail_data.sources.source import Corrupt, Record

_FORMAT = "array_record"


def tfds(directory: str | Path, *, split: str = "train") -> "TfdsFiles":
    """Reads the examples of a data set that TensorFlow Datasets prepared.

    A record is {feature: value}: text is a string, an image u8[H, W, C], and other values are as
    `tfds.data_source` gives them. Needs the extra `tfds`, and no TensorFlow.

    Args:
        directory: Directory of one version, such as "mnist/3.0.1", with features.json and files in
            the format array_record.
        split: Name of the split.

    Raises:
        ValueError: The directory holds no prepared data set, files of another format, or no such
            split.
        ImportError: The package `tensorflow_datasets` is missing.
    """
    path = require_path("directory", directory).absolute()
    require_name("split", split, "train")
    for name in ("dataset_info.json", "features.json"):
        if not (path / name).is_file():
            raise ValueError(
                f"a data set of TFDS must have {name}: got directory={str(directory)!r} without. "
                "Give the directory of one version, such as mnist/3.0.1."
            )
    information = _builder(str(path)).info
    kind = information.file_format and information.file_format.value
    if kind != _FORMAT:
        raise ValueError(
            f"a data set of TFDS must be in the format {_FORMAT}: got {kind!r} in "
            f"directory={str(directory)!r}. Prepare it with file_format={_FORMAT!r}."
        )
    if split not in information.splits:
        raise ValueError(
            f"split must be one of {sorted(information.splits)}: got split={split!r}. Pass one of "
            "them."
        )
    files = tuple(_files.named([str(file) for file in information.splits[split].filepaths]))
    digest = hashlib.sha256((path / "features.json").read_bytes()).hexdigest()
    counts = tuple(map(count_of, files))
    return TfdsFiles(
        files=files, counts=counts, decode="bytes", directory=str(path), features=digest
    )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TfdsFiles(ArrayRecordFiles):
    """A split of a prepared data set as a source, from `tfds`. A part is a range of records.

    Attributes:
        directory: The data set.
        features: Digest of its features.json.
    """

    directory: str
    features: str

    @property
    def kind(self) -> str:
        return f"tfds features={self.features}"

    def record(self, content: bytes) -> Record | Corrupt:
        features = _builder(self.directory).info.features
        try:
            return _with_text(features.deserialize_example_np(content), features)
        except Exception as error:  # a decoder of another library may raise anything
            return Corrupt(
                f"an example must have the features of features.json: got {type(error).__name__}: "
                f"{error}. Prepare the data set again, or leave the record out."
            )


@functools.lru_cache(maxsize=8)
def _builder(directory: str) -> Any:
    return _require_tfds().builder_from_directory(directory)


def _with_text(value: Any, feature: Any) -> Any:
    """Returns a decoded value with strings for the bytes of its text features."""
    features = _require_tfds().features
    if isinstance(feature, features.Text):
        if isinstance(value, bytes):
            return value.decode("utf-8")
        return [_with_text(item, feature) for item in value]
    if isinstance(feature, features.FeaturesDict) and isinstance(value, Mapping):
        return {name: _with_text(item, feature[name]) for name, item in value.items()}
    if isinstance(feature, features.Sequence):
        return _with_text(value, feature.feature)
    return value


def _require_tfds() -> Any:
    return require_package("tensorflow_datasets", "a data set of TFDS needs", extra="tfds")
