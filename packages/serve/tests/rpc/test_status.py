# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Each kind of error has its status; those of the server itself tell nothing but an id."""

import logging
import re

import grpc
import pytest
from google.protobuf.message import DecodeError

from dovetail_serve import errors
from dovetail_serve.rpc.status import Refusal, status


@pytest.mark.parametrize(
    "kind, code",
    [
        (errors.RequestError, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.ModelNotFound, grpc.StatusCode.NOT_FOUND),
        (errors.NotReady, grpc.StatusCode.UNAVAILABLE),
        (errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.TooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.ExecutionError, grpc.StatusCode.INTERNAL),
    ],
)
def test_errors_of_requests_keep_their_message(kind, code):
    end = status(kind("must be so, got that; write this"), "ModelInfer")
    assert (end.code, end.message) == (code, "must be so, got that; write this")
    assert end.metadata == ()


@pytest.mark.parametrize(
    "seconds, whole, ms", [(0.0, "1", "0"), (0.0301, "1", "31"), (2.2, "3", "2200")]
)
def test_a_full_queue_says_when_to_come_again(seconds, whole, ms):
    end = status(errors.QueueFull("full", retry_after_s=seconds), "ModelInfer")
    assert end.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(end.metadata) == {"retry-after": whole, "grpc-retry-pushback-ms": ms}


def test_refusals_and_malformed_messages():
    end = status(Refusal(grpc.StatusCode.PERMISSION_DENIED, "no"), "RepositoryModelLoad")
    assert (end.code, end.message) == (grpc.StatusCode.PERMISSION_DENIED, "no")
    end = status(DecodeError("Error parsing"), "ModelInfer")
    assert end.code == grpc.StatusCode.INVALID_ARGUMENT
    for part in ("request of ModelInfer", "got bytes that are not", "send it with"):
        assert part in end.message


def test_unexpected_errors_are_logged_and_not_told(caplog):
    with caplog.at_level(logging.ERROR, "dovetail_serve"):
        end = status(KeyError("/secret/path"), "ModelInfer")
    assert end.code == grpc.StatusCode.INTERNAL
    assert "secret" not in end.message
    request_id = re.search(r"request_id=([0-9a-f]{32})$", end.message)
    assert request_id
    assert f"request_id={request_id[1]}" in caplog.text
    assert "/secret/path" in caplog.text


def test_long_messages_are_cut_to_what_a_header_holds():
    end = status(errors.RequestError("é" * 5000), "ModelInfer")
    assert len(end.message.encode()) <= 2000
    assert end.message.endswith("é...")
    exact = "a" * 2000
    assert status(errors.RequestError(exact), "ModelInfer").message == exact
