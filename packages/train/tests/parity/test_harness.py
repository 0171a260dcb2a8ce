# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The adapter under lm-evaluation-harness itself, with a model whose numbers are known."""

import logging
import math
import types

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_train.eval.harness import LMEval

pytest.importorskip("lm_eval")

pytestmark = pytest.mark.parity

LENGTH = 12


class _Bytes:
    bos_id, eos_id = 256, 257

    def encode(self, texts):
        return [types.SimpleNamespace(ids=np.frombuffer(t.encode(), np.uint8)) for t in texts]

    def decode(self, ids):
        return bytes(i for i in ids if i < 256).decode()


class _Next(nnx.Module):
    """After byte b, b + 1 has probability 1/2; the rest share the other half."""

    def __init__(self):
        p = np.full((258, 258), 0.5 / 257)
        p[np.arange(258), (np.arange(258) + 1) % 258] = 0.5
        self.table = nnx.Param(jnp.asarray(np.log(p), jnp.float32))

    def features(self, tokens, **options):
        return self.table[...][tokens], None

    def head(self, x):
        return x


SURE, OTHER = math.log(0.5), math.log(0.5 / 257)


def _instances(kind, *arguments):
    from lm_eval.api.instance import Instance

    return [
        Instance(request_type=kind, doc={}, arguments=args, idx=i)
        for i, args in enumerate(arguments)
    ]


def _adapter(**options):
    return LMEval(_Next(), _Bytes(), length=LENGTH, rows=2, **options)


def _counting(prompts, *, max_tokens, temperature, until):
    """Counts on from the last byte; ends at "m" with end-of-text and something after it."""
    found = []
    for prompt in prompts:
        ids = [prompt[-1] + 1 + i for i in range(max_tokens)]
        end = ord("m")
        found.append([*ids[: ids.index(end)], 257, 65] if end in ids else ids)
    return found


def test_the_harness_accepts_it_as_a_model():
    from lm_eval.api.model import LM

    adapter = _adapter()
    assert isinstance(adapter, LM)
    assert (adapter.max_length, adapter.prefix_token_id, adapter.eot_token_id) == (12, 256, 257)


def test_log_likelihoods_are_in_the_order_of_the_requests():
    pairs = [("ab", "cd"), ("", "b"), ("ab", "ce"), ("a ", "b")]
    found = _adapter().loglikelihood(_instances("loglikelihood", *pairs), disable_tqdm=True)
    # " b" after "a": the space belongs to the continuation.
    expected = [2 * SURE, OTHER, SURE + OTHER, 2 * OTHER]
    np.testing.assert_allclose([logp for logp, _ in found], expected, rtol=1e-6)
    assert [greedy for _, greedy in found] == [True, False, False, False]


def test_a_document_counts_its_begin_of_text_as_the_harness_does():
    instances = _instances("loglikelihood_rolling", ("abcdefghijklmnop",), ("b",))
    # Begin-of-text from itself, the first byte from begin-of-text, and then byte by byte.
    with_bos = [2 * OTHER + 15 * SURE, 2 * OTHER]
    np.testing.assert_allclose(_adapter().loglikelihood_rolling(instances), with_bos, rtol=1e-6)
    without = _adapter(bos=False).loglikelihood_rolling(instances)
    np.testing.assert_allclose(without, [OTHER + 15 * SURE, OTHER], rtol=1e-6)


def test_what_is_cut_is_counted_and_said(caplog):
    adapter = _adapter()
    pairs = [("a" * 11, "b"), ("a" * 12, "b"), ("a" * 30, "b")]
    with caplog.at_level(logging.WARNING, logger="dovetail_train"):
        adapter.loglikelihood(_instances("loglikelihood", *pairs), disable_tqdm=True)
    assert adapter.cut_requests == 2
    assert "2 requests were longer than length=12 and lost the left end" in caplog.text
    adapter.loglikelihood(_instances("loglikelihood", ("a" * 12, "b")), disable_tqdm=True)
    assert adapter.cut_requests == 3


def test_text_is_generated_up_to_a_stop_or_the_end():
    adapter = _adapter(sampler=_counting)
    five = {"max_gen_toks": 5, "until": ["f"]}
    instances = _instances(
        "generate_until",
        ("ab", five),
        ("ij", {"max_gen_toks": 5}),
        ("xb", {"max_gen_toks": 2, "until": "z"}),
        ("ad", five),
    )
    # "cdefg" before "f"; "kl" before the end of text; "cd" is all; "efghi" before "f".
    assert adapter.generate_until(instances) == ["cde", "kl", "cd", "e"]
    assert adapter.cut_requests == 0


def test_a_prompt_leaves_room_for_what_is_generated(caplog):
    seen = []

    def sampler(prompts, **options):
        seen.append((prompts, options))
        return [[ord("x")] for _ in prompts]

    adapter = _adapter(sampler=sampler)
    options = {"max_gen_toks": 9, "temperature": 0.7}
    adapter.generate_until(_instances("generate_until", ("abcdef", options), ("b", options)))
    ((prompts, given),) = seen
    assert prompts == [[100, 101, 102], [256, 98]]
    assert given == {"max_tokens": 9, "temperature": 0.7, "until": ()}
    assert adapter.cut_requests == 1
    assert "1 requests were longer" in caplog.text


@pytest.mark.parametrize(
    "options, temperature",
    [
        ({}, 0.0),
        ({"do_sample": False, "temperature": 0.0}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.5}, 0.5),
        ({"do_sample": True, "temperature": 0.5}, 0.5),
    ],
)
def test_sampling_options_become_a_temperature(options, temperature):
    seen = []

    def sampler(prompts, *, temperature, **_):
        seen.append(temperature)
        return [[65]]

    request = _instances("generate_until", ("a", {"max_gen_toks": 2} | options))
    assert _adapter(sampler=sampler).generate_until(request) == ["A"]
    assert seen == [temperature]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"top_p": 0.9}, r"must be of until.*got {'top_p': 0.9}; leave the others out"),
        ({"max_tokens": 3}, r"one of max_gen_toks.*'max_tokens': 3.*leave the others out"),
        ({"do_sample": True, "temperature": 0}, r"go together, got do_sample=True.*do_sample: F"),
        ({"do_sample": False, "temperature": 1}, r"go together, got do_sample=False.*do_sample: T"),
        ({"max_gen_toks": 12}, r"have room.*got 12 tokens to generate for length=12; set max_gen"),
    ],
)
def test_generation_that_would_be_another_is_refused(options, message):
    request = _instances("generate_until", ("a", {"max_gen_toks": 2} | options))
    with pytest.raises(ValueError, match=message):
        _adapter(sampler=_counting).generate_until(request)


def test_generation_without_a_sampler_says_what_to_pass():
    request = _instances("generate_until", ("a", {}))
    with pytest.raises(ValueError, match=r"needs a sampler, got sampler=None for 1 req.*sampler="):
        _adapter().generate_until(request)


def test_options_of_encoding_that_are_not_kept_are_refused():
    with pytest.raises(
        TypeError, match=r"no option but add_special_tokens, got {'left.*; leave it out"
    ):
        _adapter().tok_encode("a", left_truncate_len=3)


def test_what_was_answered_can_be_cached(tmp_path):
    from lm_eval.api.model import CachingLM

    adapter = _adapter(sampler=_counting)
    cached = CachingLM(adapter, str(tmp_path / "cache.db"))
    kinds = {
        "loglikelihood": ("ab", "cd"),
        "loglikelihood_rolling": ("ab",),
        "generate_until": ("ab", {"max_gen_toks": 5}),
    }
    for kind, arguments in kinds.items():
        request = _instances(kind, arguments)
        first = getattr(cached, kind)(request)
        adapter._model = None  # a second answer can only come from the cache
        assert getattr(cached, kind)(request) == first
        adapter._model = _Next()
