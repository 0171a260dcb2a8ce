# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of a server's log have a time, and are JSON if that is asked for."""

import datetime
import json
import logging
import sys

import pytest

from dovetail_serve.command.log_lines import ACCESS, LineFormatter
from dovetail_serve.http.access import LOGGER


def record(message, *, name="dovetail_serve", error=None):
    made = logging.LogRecord(name, logging.INFO, __file__, 1, "%s", (message,), error)
    made.created = 1_700_000_000.25
    return made


def test_a_text_begins_with_the_time():
    time, level, rest = LineFormatter(as_json=False).format(record("loaded x")).split(" ", 2)
    assert datetime.datetime.fromisoformat(time).timestamp() == 1_700_000_000.25
    assert datetime.datetime.fromisoformat(time).utcoffset() is not None
    assert (level, rest) == ("INFO:", "loaded x")


@pytest.mark.parametrize("message", ["loaded x", "a\nb"])
def test_json_lines_are_json(message):
    line = LineFormatter(as_json=True).format(record(message))
    assert "\n" not in line
    fields = json.loads(line)
    assert datetime.datetime.fromisoformat(fields.pop("time")).timestamp() == 1_700_000_000.25
    assert fields == {"level": "INFO", "message": message}


def test_a_line_of_the_access_log_has_its_fields():
    assert LOGGER.name == ACCESS
    line = LineFormatter(as_json=True).format(record('{"status": 200}', name=ACCESS))
    assert json.loads(line).keys() == {"time", "level", "status"}


def test_a_traceback_stays_in_its_object():
    try:
        raise KeyError("x")
    except KeyError:
        line = LineFormatter(as_json=True).format(record("failed", error=sys.exc_info()))
    assert "\n" not in line
    assert "KeyError: 'x'" in json.loads(line)["traceback"]
