# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Encoders: records to documents."""

from dovetail_data.encode.chat import Chat
from dovetail_data.encode.contrast import Contrast
from dovetail_data.encode.encoder import Document, Encoder
from dovetail_data.encode.image import Image
from dovetail_data.encode.preference import Preference
from dovetail_data.encode.prompt import Prompt
from dovetail_data.encode.text import Text

__all__ = ["Chat", "Contrast", "Document", "Encoder", "Image", "Preference", "Prompt", "Text"]
