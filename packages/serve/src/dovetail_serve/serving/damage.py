# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Damage to the weights of a version in use, by writing into their file.

With `map_weights`, on CPUs, the weights are a map of the file, so whoever writes into it changes
the answers. A rename, as `Bundle.save` makes it, leaves the mapped file alone. Weights that were
read, those on accelerators, and those that the platform converts cannot be damaged this way.
"""

from dovetail_serve.bundle.manifest import WEIGHTS
from dovetail_serve.errors import IntegrityError
from dovetail_serve.loading.model import Model
from dovetail_serve.loading.weights import verify_weights
from dovetail_serve.serving.scan import Fingerprint


def written(before: Fingerprint, after: Fingerprint) -> bool:
    """Whether the weights were written in place: another size or time of the same inode."""
    old, new = _weights(before), _weights(after)
    return old is not None and new is not None and old[1] == new[1] and old != new


def check_weights(model: Model, before: Fingerprint, after: Fingerprint) -> None:
    """Checks the weights in memory if their file was written in place.

    Args:
        model: The model in use.
        before: Fingerprint of its bundle when it was loaded.
        after: The same now.

    Raises:
        IntegrityError: An array differs, or cannot be read because the file is too short.
    """
    mapped = model.unconverted if model.maps_weights else {}
    if not mapped or not written(before, after):
        return
    old, new = _weights(before), _weights(after)
    assert old is not None
    assert new is not None
    # A read beyond the end of a mapped file ends the process with SIGBUS.
    if new[0] < old[0]:
        raise IntegrityError(
            f"{WEIGHTS} must stay as it is while it is in use, got {new[0]} bytes of {old[0]}; "
            "save a new version beside it",
            file=WEIGHTS,
        )
    verify_weights(mapped, model.manifest.weights)


def _weights(files: Fingerprint) -> tuple[int, int, int] | None:
    """Returns size, inode and time of the weights' file."""
    return next(((size, inode, time) for name, size, inode, time in files if name == WEIGHTS), None)
