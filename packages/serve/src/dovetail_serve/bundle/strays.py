# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files beside those of a bundle that copying programs, file systems and desktops make.

Nothing reads them, so they are ignored, and the log says what they are. Another file that the
manifest does not list counts as damage.
"""

import re

_COPY = "of a copy that goes on or was cut off; copy again if a file is missing, or delete it"
_OPEN = "deleted while a program had it open; it goes when that program closes it"
_KINDS = {
    r"\.nfs[0-9a-f]{8,}": f"a file on NFS, {_OPEN}",
    r"\.fuse_hidden[0-9a-f]+": f"a file on FUSE, {_OPEN}",
    r"\.smbdelete[0-9A-Fa-f]+": f"a file on SMB, {_OPEN}",
    r"\.DS_Store|\._.*|\.AppleDouble": "made by macOS for the Finder; delete it",
    r"\.goutputstream-\w+": f"a temporary file of GLib, {_COPY}",
    r"\.~tmp~|\.rsync-partial": f"a directory of rsync, {_COPY}",
    r"\..+\.\w{6}": f"a temporary file of rsync, {_COPY}",
    r"\.syncthing\..+\.tmp": f"a temporary file of Syncthing, {_COPY}",
    r".+_\.gstmp": f"a temporary file of gsutil, {_COPY}",
    r".+\.[0-9a-fA-F]{8}": f"a temporary file of the AWS command, {_COPY}",
    r"\..+\.sw[a-p]": "a file of an editor that is open or was ended; delete it",
}


def stray(name: str) -> str | None:
    """Returns a description of a file that is ignored in a bundle, or None for another one.

    Args:
        name: Its name, without the directory.
    """
    return next((kind for pattern, kind in _KINDS.items() if re.fullmatch(pattern, name)), None)
