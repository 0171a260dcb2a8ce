# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Encoders of records."""

from dovetail_data.encode.chat import Chat as Chat
from dovetail_data.encode.encoder import Document as Document
from dovetail_data.encode.encoder import Encoder as Encoder
from dovetail_data.encode.image import Image as Image
from dovetail_data.encode.preference import Preference as Preference
from dovetail_data.encode.prompt import Prompt as Prompt
from dovetail_data.encode.text import Text as Text
