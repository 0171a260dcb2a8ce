# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of a server's log: with the time, as text or as JSON objects."""

import datetime
import json
import logging

ACCESS = "dovetail_serve.access"


class LineFormatter(logging.Formatter):
    """Formats a record with its time in ISO 8601, with the offset from UTC.

    Args:
        as_json: One JSON object a record, with `time`, `level` and `message`, and `traceback` after
            an error. Records of the access log have their own fields in place of `message`.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s: %(message)s")
        self._as_json = as_json

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Returns the record's time, to the millisecond."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).astimezone()
        return time.isoformat(timespec="milliseconds")

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, or the lines of a text with a traceback."""
        if not self._as_json:
            return super().format(record)
        fields = {"time": self.formatTime(record), "level": record.levelname}
        message = record.getMessage()
        fields |= json.loads(message) if record.name == ACCESS else {"message": message}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)
