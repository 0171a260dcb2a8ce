# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps: tokenizers that fail, reasons that count, and weights that are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from engines import SMALL, byte_decoder, decoder, engine, greedy, text_engine
from flax import nnx

from dovetail_infer import Engine, Sampling
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.step.placement import Placement
from dovetail_infer.step.weights import dotted_leaves
from dovetail_infer.testing import ByteTokenizer

pytestmark = pytest.mark.thorough

GREEDY = Sampling(max_tokens=6, temperature=0, ignore_eos=True)


class _Failing(ByteTokenizer):
    """Cannot decode three ids or more, as a tokenizer that is smaller than its model."""

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        if len(ids) > 2:
            raise KeyError("no such id")
        return "x" * len(ids)


@pytest.mark.thorough("it compiles an engine")
@pytest.mark.capability("a tokenizer that fails ends its request alone")
def test_a_tokenizer_that_fails_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    short, stop = (dataclasses.replace(GREEDY, **x) for x in ({"max_tokens": 2}, {"stop": "z"}))
    with Engine(byte_decoder(), tokenizer=_Failing(), **SMALL) as running:
        at_end, while_drawing, good = running.generate([[1], [2], [3]], [GREEDY, stop, short])
        for failed in (at_end, while_drawing):
            assert (failed.finish_reason, failed.error) == ("error", "KeyError: 'no such id'")
        assert (len(at_end.tokens), len(while_drawing.tokens)) == (6, 3)
        assert (good.finish_reason, good.text) == ("length", "xx")
        with running.stream([4], GREEDY) as stream:
            list(stream)
        assert stream.completion.finish_reason == "error"
        stats = running.stats()
        assert stats.finished == {"error": 3, "length": 1}
        assert stats.failed_steps == stats.running == 0
    assert caplog.text.count("no such id") >= 3


def test_a_stop_string_in_the_last_text_counts_as_stop() -> None:
    """The last token holds back half a character, which the end makes U+FFFD."""
    option = Sampling(max_tokens=1, logit_bias={0xC3: 100.0}, stop="\ufffd")
    with text_engine() as running:
        (found,) = running.generate(["a"], option)
        assert (found.finish_reason, found.stop, found.text) == ("stop", "\ufffd", "")
        assert running.stats().finished == {"stop": 1}


@pytest.mark.parametrize(
    "version, error, words",
    [
        (1.5, TypeError, ("an integer", "version=1.5", "Count")),
        (True, TypeError, ("an integer", "version=True", "Count")),
        (2**31, ValueError, ("int32", "version=2147483648", "Count")),
        (0, ValueError, ("above", "version=0", "Count")),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_version_is_a_growing_int32(version: Any, error: type[Exception], words: Any) -> None:
    with engine() as running:
        with pytest.raises(error) as raised:
            running.update_weights({}, version=version)
        assert all(word in str(raised.value) for word in words)
        running.update_weights({}, version=np.int64(2**31 - 1))
        assert type(running.stats().version) is int
        (found,) = running.generate([[1]], GREEDY)
        assert found.versions.tolist() == [2**31 - 1] * 6


def test_stats_are_those_of_the_completions() -> None:
    """Each number is counted a second time from what was asked and what came."""
    ids = [list(range(1, n)) for n in (2, 4, 9, 18, 30)]
    with engine(prefix_cache=False) as running:
        found = running.generate(ids, GREEDY)
        found += running.generate([[1, 2]] * 2, dataclasses.replace(GREEDY, max_tokens=1))
        stats = running.stats()
        prompts = sum(map(len, ids)) + 4
        drawn = sum(len(c.tokens) for c in found)
        assert (stats.prompt_tokens, stats.cached_tokens) == (prompts, 0)
        assert (stats.drawn_tokens, stats.finished) == (drawn, {"length": 7})
        assert stats.prompt_tokens == sum(c.prompt_tokens for c in found)
        # Every prompt, and every token but the last, which nothing follows.
        assert stats.read_tokens == prompts + drawn - 7
        assert stats.late_compiles == stats.compiled > 0


@pytest.mark.parametrize("accelerator", [False, True])
def test_sleep_pause_and_resume_in_any_order_keep_requests(
    accelerator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New weights come while the engine sleeps, as after a training step."""
    if accelerator:  # weights then move to the host
        monkeypatch.setattr(Placement, "platform", "accelerator")
    new = decoder(seed=1)
    with engine() as running, running.stream([1, 2], GREEDY) as stream:
        for name in ("resume", "pause", "pause", "sleep", "pause", "sleep"):
            getattr(running, name)()
        assert (running._executor._parameters == ()) == accelerator
        steps = running.stats().steps
        state = nnx.state(new, nnx.Param)
        with pytest.raises(ValueError, match=r"Shapes must.*norm.shape=\(3,\)"):
            running.update_weights({**dotted_leaves(state), "norm": np.zeros(3)}, version=1)
        running.update_weights(state, version=1)
        (program,) = running._executor.compile([Bucket(1, 1, "plain")])
        assert program.compiled  # by the shapes of the weights
        assert running.stats().steps == steps
        running.resume()
        running.resume()
        list(stream)
        found = stream.completion
        old = int((found.versions == 0).sum())
        ids = [1, 2, *found.tokens[:old].tolist()]
        assert found.tokens[old:].tolist() == greedy(new, ids, 6 - old)
        assert found.finish_reason == "length"
