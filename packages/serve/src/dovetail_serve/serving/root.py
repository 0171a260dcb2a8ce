# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Root`: listings of the repository's directory that can be trusted.

A file server that goes away leaves the empty directory of its mount point, so all models look
deleted. A listing without models is therefore refused while models serve. So is one of another file
system, unless it has a model that serves: then the file server is back under another number. The
price: the last model is unloaded by an order and not by deletion.
"""

import asyncio
import logging
from collections.abc import Callable, Set
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from dovetail_serve.serving.scan import Versions, scan_models, scan_versions

Result = TypeVar("Result")

_log = logging.getLogger("dovetail_serve")


class Root:
    """The directory of a repository.

    Args:
        path: The directory.
        threads: Does the work on files.
    """

    def __init__(self, path: Path, threads: Executor) -> None:
        self.path = path
        self._threads = threads
        self._device: int | None = None
        self._logged: set[Path] = set()

    async def models(self, serving: Set[str]) -> tuple[str, ...]:
        """Lists the models.

        Args:
            serving: Names of the models with a ready version.

        Raises:
            OSError: The directory cannot be read, or its file system is away.
            ValueError: It is a bundle.
        """
        listing = await self._on_thread(scan_models, self.path)
        another = listing.device != self._device and not serving & set(listing.names)
        if serving and (another or not listing.names):
            raise OSError(
                f"the repository must have the models that serve, got none of {len(serving)} in "
                f"{str(self.path)!r}; mount its file system again, or unload models to delete them"
            )
        self._device = listing.device
        for name, reason in listing.ignored.items():
            self._log_ignored(self.path / name, reason)
        return listing.names

    async def versions(self, name: str, serving: Set[str]) -> Versions:
        """Lists the versions of a model; none if its directory was deleted.

        Raises OSError or ValueError as `models` does, and OSError if the model cannot be read.
        """
        folder = self.path / name
        try:
            versions = await self._on_thread(scan_versions, folder)
        except FileNotFoundError:
            versions = Versions(fingerprints={}, ignored={})
        if not versions.fingerprints:  # deleted, or away since the models were listed
            await self.models(serving)
        for ignored, reason in versions.ignored.items():
            self._log_ignored(folder / ignored, reason)
        return versions

    def _log_ignored(self, path: Path, reason: str) -> None:
        if path not in self._logged:
            self._logged.add(path)
            _log.warning("ignored path=%s reason=%s", path, reason)

    def _on_thread(self, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
