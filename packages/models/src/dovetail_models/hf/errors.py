# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Errors about the files of a model: a command ends with 3, damaged or refused data."""


class FilesError(ValueError):
    """Files that are damaged, or that do not fit each other."""

    exit_code = 3


class MissingError(FileNotFoundError):
    """A directory of a model lacks some of its files."""

    exit_code = 3
