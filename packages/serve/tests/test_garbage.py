# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""No collection during a parse, on again afterwards; a released model in a cycle ends."""

import gc
import json
import threading
import weakref

import numpy as np
import pytest

from dovetail_serve.errors import RequestError
from dovetail_serve.http.messages import parse
from dovetail_serve.serving.garbage import collect_unless_gone, collection_off, freeze

SHAPE = [1, 224, 224, 3]


@pytest.fixture
def collections():
    """Generations that were collected so far."""
    seen: list[int] = []

    def note(phase, information):
        seen.append(information["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def image():
    """A request whose data is nested as the tensor: 50,000 lists."""
    data = np.random.default_rng(0).normal(size=SHAPE).round(3).tolist()
    tensor = {"name": "x", "datatype": "FP32", "shape": SHAPE, "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def test_nothing_is_collected_while_a_large_document_is_parsed(collections):
    body = image()
    collections.clear()
    with collection_off():
        assert not gc.isenabled()
        request = parse(body, None)
        assert not collections
    assert gc.isenabled()
    assert list(request.inputs["x"].shape) == SHAPE
    parse(body, None)
    assert collections, "without it there are collections"


def test_it_is_on_again_after_an_error_and_stays_off_if_it_was():
    with pytest.raises(RequestError), collection_off():
        parse(b"[", None)
    assert gc.isenabled()
    gc.disable()
    try:
        with collection_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_parses_of_several_threads_overlap():
    entered, leave = threading.Event(), threading.Event()

    def parse_slowly():
        with collection_off():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=parse_slowly)
    with collection_off():
        thread.start()
        entered.wait()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


class Node:
    """An object that refers to itself."""

    def __init__(self):
        self.me = self


def test_a_frozen_cycle_is_collected_once_it_should_have_gone():
    node = Node()
    reference = weakref.ref(node)
    gc.unfreeze()
    freeze()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    del node
    gc.collect()
    assert reference() is not None
    collect_unless_gone(reference)
    assert reference() is None
    assert gc.get_freeze_count() > 1000
    collect_unless_gone(reference)  # nothing to do
    gc.unfreeze()
