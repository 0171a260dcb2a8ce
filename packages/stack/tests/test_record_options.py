# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_stack.recipes.record_options import (
    Adapting,
    Answers,
    Embedding,
    Encoding,
    Examples,
    PreferenceTuning,
    Preferring,
    Rewarding,
    RewardTuning,
)


@pytest.mark.parametrize(
    "kind, options, message",
    [
        (
            Examples,
            {"records": (), "held_out": 1.0},
            r"0 and 1, got held_out=1.0: try 0.05",
        ),
        (Examples, {"records": (), "max_corrupt": -1}, r"at least 0, got max_corrupt=-1: leave it"),
        (Answers, {"samples": 3, "prompts": 0}, r"must have prompts.*samples=3, prompts=0: pass"),
        (
            Answers,
            {"directory_sampling": True, "prompts": 0},
            r"must have prompts.*directory_sampling=True, prompts=0: pass prompts=4",
        ),
        (Answers, {"answer_tokens": 0}, r"at least 1, got answer_tokens=0: leave it out"),
        (Answers, {"samples": -1}, r"at least 0, got samples=-1: leave it out"),
        (Adapting, {"quantize": "int8"}, r"must have adapters.*quantize=int8, lora_rank=0: pass"),
        (Preferring, {"beta": 0.0}, r"above 0, got beta=0.0: leave it out"),
        (
            Preferring,
            {"loss": "orpo", "kind": "ipo"},
            r"loss=orpo, which has none: leave",
        ),
        (
            Preferring,
            {"loss": "cpo", "reference": "frozen"},
            r"dpo or kto, got refe.*leave",
        ),
        (
            Preferring,
            {"loss": "kto", "label_smoothing": 0.1},
            r"for dpo or cpo, got label_smoothing=0.1, loss=kto, which",
        ),
        (Preferring, {"loss": "kto", "reference": "field"}, r"must be frozen for kto.*pass refere"),
        (Rewarding, {"center": -0.1}, r"at least 0, got center=-0.1: leave it out"),
        (Embedding, {"temperature": 0.0}, r"above 0, got temperature=0.0: leave it out"),
        (Embedding, {"negative": "query"}, r"fields of their own, got query=query.*name different"),
        (Encoding, {"learning_rate": 0.0}, r"above 0, got learning_rate=0.0: leave it out"),
    ],
)
def test_options_that_mean_nothing_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_the_texts_of_a_group_come_in_the_order_of_its_rows():
    assert Embedding(query="anchor").fields == ("anchor", "positive")
    assert Embedding(negative="n").fields == ("query", "positive", "n")


def test_preferences_have_smaller_rates_and_no_guard_for_spikes():
    rates = [PreferenceTuning(lora_rank=rank).learning_rate for rank in (0, 4)]
    assert rates == [1e-6, 1e-5]
    assert [Adapting(lora_rank=rank).learning_rate for rank in (0, 4)] == [2e-5, 2e-4]
    assert PreferenceTuning(learning_rate=3e-7).learning_rate == 3e-7
    guards = [kind().guard_sigma for kind in (PreferenceTuning, RewardTuning, Encoding, Adapting)]
    assert guards == [0, 0, 0, 6]
