# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's results against whole forward passes, and the same results in every setting."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from engines import VOCAB, decoder, engine, greedy, logprobs, prompts, text_engine

from dovetail_infer import Engine, Sampling, fold_seed
from dovetail_infer.testing import ByteTokenizer

GREEDY = Sampling(max_tokens=12, temperature=0)
SETTINGS = [  # each compiles programs of its own
    *({"prefix_cache": False}, {"overlap": False}, {"page_size": 16}, {"step_tokens": 8}),
    *({"step_tokens": 9, "page_size": 1}, {"max_rows": 1}, {"invariant": True}),
    {"prefill_tokens": 3},
    {"kv_bytes": 24 * 1024},  # 24 pages: requests preempt each other
]


@pytest.fixture(scope="module")
def running():
    """An engine that several tests share: its programs take a second each to trace."""
    with engine() as shared:
        yield shared


@pytest.fixture(scope="module")
def one_size():
    """An engine with one program for each kind of step."""
    with engine(invariant=True) as shared:
        yield shared


@pytest.fixture(scope="module")
def texts():
    """An engine of texts that several tests share."""
    with text_engine() as shared:
        yield shared


@pytest.fixture(scope="module")
def expected():
    return [greedy(decoder(), ids, 12) for ids in prompts(20)]


def tokens(completions):
    return [completion.tokens.tolist() for completion in completions]


@pytest.mark.costly("the first proof of an engine")
@pytest.mark.capability("greedy ids of whole forward passes, in every setting of the engine")
@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(o, marks=pytest.mark.thorough) for o in SETTINGS)], ids=str
)
@pytest.mark.parameter("prefix_cache", "overlap", "page_size", "step_tokens", "prefill_tokens")
@pytest.mark.parameter("max_rows", "kv_bytes", "invariant")
def test_greedy_ids_are_those_of_whole_forward_passes(options, expected):
    with engine(**options) as running:
        assert tokens(running.generate(prompts(20), GREEDY)) == expected
        stats = running.stats()
        assert stats.waiting == stats.running == stats.failed_steps == 0
        assert all(page.used == 0 for page in stats.pages)
        assert (stats.preemptions > 0) == ("kv_bytes" in options)
        if options.get("prefix_cache", True):
            assert stats.cached_tokens > 0


@pytest.mark.thorough
@pytest.mark.parametrize("windows", [(5,), (None, 7), (3, 16)])
def test_layers_with_windows(windows):
    model = decoder(windows)
    with engine(model) as running:
        for _ in range(2):  # the second time from the prefix cache
            found = tokens(running.generate(prompts(6), GREEDY))
            assert found == [greedy(model, ids, 12) for ids in prompts(6)]


@pytest.mark.thorough("it compiles an engine for each case")
@pytest.mark.capability("draws that depend on the seed alone")
@pytest.mark.parameter("seed")
def test_a_seed_draws_the_same_tokens_alone_and_in_company():
    sampling = [
        Sampling(max_tokens=10, temperature=0.9, top_p=0.8, seed=i, logprobs=i % 3)
        for i in range(24)
    ]
    with engine(max_rows=24) as running:
        together = running.generate(prompts(24), sampling)
        assert len({tuple(x) for x in tokens(together)}) == 24
        for i in (0, 5, 23):
            (alone,) = running.generate([prompts(24)[i]], sampling[i])
            assert alone.tokens.tolist() == together[i].tokens.tolist()


@pytest.mark.thorough("it compiles an engine for each case")
@pytest.mark.capability("the same bits in any company, after preemptions and from cached prefixes")
@pytest.mark.parameter("invariant", "operations")
def test_an_invariant_engine_has_the_same_bits_in_any_company():
    options = [{}, {"presence_penalty": 0.5}]
    sampling = [Sampling(max_tokens=12, seed=i, **options[i % 2]) for i in range(20)]
    model = decoder((None, 7))
    with engine(model, invariant=True) as running:
        cold, warm = (running.generate(prompts(20), sampling) for _ in range(2))
        assert sum(completion.cached_tokens for completion in warm) > 0
        page_bytes = sum(group.page_bytes for group in running.fit.groups)
    with engine(model, invariant=True, prefix_cache=False, kv_bytes=24 * page_bytes) as running:
        alone = [running.generate([prompts(20)[i]], sampling[i])[0] for i in range(6)]
        assert running.stats().preemptions == 0
        preempted = running.generate(prompts(20), sampling)
        assert running.stats().preemptions > 0
    with engine(model, invariant=True, prefill_tokens=3) as running:
        capped = running.generate(prompts(20), sampling)
    for completions in (cold, warm, preempted, capped):
        for ours, theirs in zip(completions[:6], alone, strict=True):
            assert ours.tokens.tolist() == theirs.tokens.tolist()
            np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)


@pytest.mark.thorough
def test_a_request_without_a_seed_can_be_repeated_by_the_seed_of_its_completion(running):
    a, b = running.generate([[1, 2, 3]] * 2, Sampling(max_tokens=20))
    assert a.seed != b.seed
    assert a.tokens.tolist() != b.tokens.tolist()
    (again,) = running.generate([[1, 2, 3]], Sampling(max_tokens=20, seed=a.seed))
    assert again.tokens.tolist() == a.tokens.tolist()


@pytest.mark.costly("each sample a second time, alone")
@pytest.mark.capability("several completions of a prompt that share its pages")
def test_samples_are_seeded_requests_that_share_the_prompt(one_size):
    running, ids = one_size, prompts(2, seed=21, longest=30)
    before = running.stats().cached_tokens
    found = running.sample(ids, n=3, max_tokens=8, temperature=0.7, seed=11)
    assert [len(group) for group in found] == [3, 3]
    # Of each prompt, all full pages but those that its first completion computed.
    shared = sum(2 * ((len(x) - 1) // 4 * 4) for x in ids)
    assert running.stats().cached_tokens - before >= shared > 0
    for i, prompt in enumerate(ids):
        for j in range(3):
            seed = fold_seed(11, prompt=i, completion=j)
            assert found[i][j].seed == seed
            option = Sampling(max_tokens=8, temperature=0.7, seed=seed)
            (alone,) = running.generate([prompt], option)
            assert alone.tokens.tolist() == found[i][j].tokens.tolist()


@pytest.mark.costly("the first proof of an engine")
@pytest.mark.capability("log-probabilities of drawn and of prompt tokens")
@pytest.mark.parameter("logprobs", "prompt_logprobs", "temperature", "top_k")
def test_logprobs_are_those_of_a_whole_forward_pass(one_size):
    running, model, ids = one_size, decoder(), prompts(8)
    sampling = Sampling(
        max_tokens=9, temperature=0.8, top_k=20, seed=3, logprobs=5, prompt_logprobs=4
    )
    running.generate(ids, dataclasses.replace(sampling, prompt_logprobs=None))
    # The prefix cache has all prompts now, and prompt tokens are scored nevertheless.
    for prompt, found in zip(ids, running.generate(ids, sampling), strict=True):
        drawn = found.tokens.tolist()
        want = logprobs(model, prompt + drawn)
        rows = want[len(prompt) - 1 : -1]
        picked = rows[np.arange(9), drawn]
        np.testing.assert_allclose(found.logprobs, picked, atol=1e-4)
        np.testing.assert_array_equal(found.top.tokens, np.argsort(-rows, axis=1)[:, :5])
        np.testing.assert_allclose(found.top.logprobs, -np.sort(-rows)[:, :5], atol=1e-4)
        assert found.top.ranks.tolist() == [
            1 + int((row > row[t]).sum()) for row, t in zip(rows, drawn, strict=True)
        ]
        before = want[: len(prompt) - 1]
        given = before[np.arange(len(before)), prompt[1:]]
        np.testing.assert_allclose(found.prompt_logprobs, given, atol=1e-4)
        assert found.prompt_top.tokens.shape == (len(before), 4)
        _check_sampled(found, rows)


def _check_sampled(found, rows):
    """The two numbers of the sampler: temperature 0.8, then the 20 largest."""
    hot = rows / 0.8
    hot = hot - np.log(np.exp(hot).sum(axis=1, keepdims=True))
    kept = hot >= np.sort(hot, axis=1)[:, -20:-19]
    mass = np.log(np.where(kept, np.exp(hot), 0).sum(axis=1))
    np.testing.assert_allclose(found.log_mass, mass, atol=1e-4)
    before = hot[np.arange(len(hot)), found.tokens]
    np.testing.assert_allclose(found.sampled_logprobs + found.log_mass, before, atol=1e-4)


@pytest.mark.thorough
def test_score_is_the_log_probability_of_each_token_but_the_first(running):
    ids = [*prompts(5), [3, 1]]
    ids[0] = np.random.default_rng(5).integers(0, VOCAB, 64).tolist()  # max_length tokens
    for prompt, found in zip(ids, running.score(ids), strict=False):
        if len(prompt) > 1:
            want = logprobs(decoder(), prompt)[np.arange(len(prompt) - 1), prompt[1:]]
            np.testing.assert_allclose(found, want, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parameter("kept")
def test_kept_ids_are_those_of_the_filters(running):
    (found,) = running.generate(
        [[1, 2, 3]], Sampling(max_tokens=6, top_k=7, seed=1, kept=True, temperature=0.5)
    )
    rows = logprobs(decoder(), [1, 2, 3, *found.tokens.tolist()])[2:-1]
    want = np.sort(np.argsort(-rows, axis=1)[:, :7], axis=1)
    assert found.kept.bits is None
    np.testing.assert_array_equal(found.kept.tokens, want)
    (found,) = running.generate([[1, 2, 3]], Sampling(max_tokens=6, top_p=0.5, kept=True))
    assert found.kept.tokens is None
    bits = np.unpackbits(found.kept.bits.view(np.uint8), axis=1, bitorder="little")
    mass = np.where(bits[:, :VOCAB], np.exp(logprobs(decoder(), [1, 2, 3, *found.tokens])[2:-1]), 0)
    np.testing.assert_allclose(np.log(mass.sum(axis=1)), found.log_mass, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parameter("rule")
def test_a_rule_of_the_user_draws(running):
    def least_likely(warped, key):
        return jnp.argmin(jnp.where(warped > -jnp.inf, warped, jnp.inf))

    option = Sampling(max_tokens=6, top_k=3, rule=least_likely, logprobs=3)
    found = running.generate([[1, 2, 3], [4]], option)
    for completion in found:
        assert completion.tokens.tolist() == completion.top.tokens[:, 2].tolist()


class TestEnds:
    """How requests end."""

    @pytest.mark.parameter("max_tokens", "max_length")
    def test_length(self, one_size):
        short, long = one_size.generate([[1], list(range(60))], GREEDY)
        assert (short.finish_reason, len(short.tokens)) == ("length", 12)
        assert (long.finish_reason, len(long.tokens)) == ("length", 4)  # max_length 64

    @pytest.mark.parameter("stop_token_ids", "min_tokens")
    def test_stop_ids_and_min_tokens(self, one_size):
        (free,) = one_size.generate([[5, 6]], GREEDY)
        stop = int(free.tokens[4])
        first = free.tokens.tolist().index(stop)
        option = dataclasses.replace(GREEDY, stop_token_ids=[stop])
        (found,) = one_size.generate([[5, 6]], option)
        assert (found.finish_reason, found.stop) == ("stop", stop)
        assert found.tokens.tolist() == free.tokens.tolist()[: first + 1]
        option = dataclasses.replace(option, min_tokens=12)
        (found,) = one_size.generate([[5, 6]], option)
        assert found.finish_reason == "length"
        assert stop not in found.tokens[:11].tolist()

    @pytest.mark.thorough
    @pytest.mark.parameter("ignore_eos", "tokenizer")
    def test_eos_and_ignore_eos(self, texts):
        eos = ByteTokenizer().eos_id
        bias = {eos: 100.0}
        (found,) = texts.generate(["ab"], Sampling(logit_bias=bias))
        assert (found.finish_reason, found.stop, found.text) == ("stop", eos, "")
        option = Sampling(logit_bias=bias, ignore_eos=True, max_tokens=3)
        (found,) = texts.generate(["ab"], option)
        assert found.tokens.tolist() == [eos] * 3
        assert found.finish_reason == "length"

    @pytest.mark.thorough
    @pytest.mark.parameter("stop")
    def test_stop_strings_at_every_split(self, texts):
        (free,) = texts.generate(["ab"], Sampling(max_tokens=24, seed=5, ignore_eos=True))
        assert free.text == ByteTokenizer().decode(free.tokens)
        for begin in range(0, len(free.text) - 3, 3):
            stop = free.text[begin : begin + 3]
            option = Sampling(max_tokens=24, seed=5, stop=stop, ignore_eos=True)
            (found,) = texts.generate(["ab"], option)
            assert found.text == free.text[: free.text.index(stop)]
            assert (found.finish_reason, found.stop) == ("stop", stop)
            with texts.stream("ab", option) as stream:
                assert "".join(piece.text for piece in stream) == found.text


@pytest.mark.thorough
def test_stop_strings_count_from_min_tokens_on(texts):
    option = Sampling(max_tokens=24, seed=5, ignore_eos=True)
    (free,) = texts.generate(["ab"], option)
    stop = free.text[2]
    (found,) = texts.generate(["ab"], dataclasses.replace(option, stop=stop))
    assert len(found.tokens) <= 9  # two characters, of at most four bytes, and the stop
    option = dataclasses.replace(option, stop=stop, min_tokens=20)
    (found,) = texts.generate(["ab"], option)
    assert len(found.tokens) >= 20
    assert found.text == free.text[: len(found.text)]


@pytest.mark.thorough
@pytest.mark.parameter("logit_bias", "repetition_penalty")
def test_penalties_and_bias_of_a_request_stay_with_it(running):
    """All slots had a bias. Beside a request with options a plain one reads its slot's state."""
    free = tokens(running.generate([[7, 8], [9]], GREEDY))
    option = dataclasses.replace(GREEDY, logit_bias={3: 50.0}, repetition_penalty=1.5)
    assert all(3 in ids for ids in tokens(running.generate([[7, 8]] * 4, option)))
    beside = dataclasses.replace(GREEDY, logprobs=1)
    again = running.generate([[7, 8], [9], [5], [6]], [GREEDY, GREEDY, beside, beside])
    assert tokens(again)[:2] == free


@pytest.mark.thorough
@pytest.mark.parameter("frequency_penalty", "presence_penalty")
def test_penalties_survive_a_preemption(running):
    option = [
        Sampling(
            max_tokens=12, temperature=0.9, seed=i, frequency_penalty=0.8, presence_penalty=0.3
        )
        for i in range(12)
    ]
    ids = prompts(12)
    want = tokens(running.generate(ids, option))
    with engine(kv_bytes=24 * 1024) as small:
        assert tokens(small.generate(ids, option)) == want
        assert small.stats().preemptions > 0


class TestBadInput:
    """Errors at the boundary, before any work."""

    @pytest.mark.parametrize(
        "prompt, error, words",
        [
            ("text", ValueError, ("need a tokenizer", "tokenizer=None", "Engine(model")),
            ([], ValueError, ("at least one token", "prompts[1]", "bos")),
            ([VOCAB], ValueError, (f"[0, {VOCAB})", f"got {VOCAB}", "tokenizer")),
            ([-1], ValueError, ("vocabulary", "got -1")),
            (
                [*range(61), 1, 2, 3],
                ValueError,
                ("at most 63 tokens", "got 64", "max_length"),
            ),
            (np.array([0.5]), TypeError, ("token ids", "float64", "np.int32")),
            (np.array([[1]]), TypeError, ("token ids", "(1, 1)")),
            ([[1], [2, 3]], TypeError, ("token ids", "prompts[1]", "np.int32")),
            ([2**70], TypeError, ("token ids", "object", "np.int32")),
            (np.array([True]), TypeError, ("token ids", "bool", "np.int32")),
        ],
    )
    @pytest.mark.parameter("tokenizer", "max_length", refuses=True)
    def test_prompts(self, prompt, error, words, running, unchecked):
        steps = running.stats().steps
        with pytest.raises(error) as raised:
            running.generate([[1], prompt], GREEDY)
        assert all(word in str(raised.value) for word in words)
        assert running.stats().steps == steps

    def test_one_prompt_for_many(self, texts):
        with pytest.raises(TypeError, match=r"Use \[prompt\]"):
            texts.generate("text", GREEDY)

    def test_a_count_of_options(self, running):
        with pytest.raises(ValueError, match="got 1 for 2 prompts"):
            running.generate([[1], [2]], [GREEDY])

    @pytest.mark.parametrize("option", ["page_size", "step_tokens", "max_rows", "max_length"])
    @pytest.mark.parameter("page_size", "step_tokens", "max_rows", "max_length", refuses=True)
    def test_sizes(self, option):
        with pytest.raises(ValueError, match=rf"{option} must be .*got {option}=0"):
            engine(**{option: 0})

    def test_a_closed_engine(self):
        running = engine()
        running.close()
        running.close()
        for call in (lambda: running.generate([[1]], GREEDY), running.warmup, running.pause):
            with pytest.raises(RuntimeError, match="closed"):
                call()


def test_nothing_is_given_for_no_prompts(running):
    assert running.generate([], GREEDY) == []


def test_an_engine_is_exported():
    assert Engine.__module__ == "dovetail_infer.engine"
