# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import forced_devices
import warm_start
from dovetail_train.eval import likelihood
from dovetail_train.eval.likelihood import loglikelihood, rolling_loglikelihood
from dovetail_train.testing import TinyDecoder

VOCAB = 13
PROGRAM = Path(__file__).parent.parent / "programs" / "likelihoods.py"


class _Bigram(nnx.Module):
    """The next token depends on the last one alone: an oracle needs a table of log p."""

    def __init__(self, vocab=VOCAB):
        table = np.random.default_rng(vocab).normal(size=(vocab, vocab)) * 2
        self.table = nnx.Param(jnp.asarray(table, jnp.float32))
        self.drop = nnx.Dropout(0.9, rngs=nnx.Rngs(0))

    def features(self, tokens, **options):
        return self.drop(self.table[...][tokens]), None

    def head(self, x):
        return x


class _Prefix(nnx.Module):
    """The logits are a fixed function of how many tokens were read and of their sum."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.weight = nnx.Param(jnp.asarray(rng.normal(size=(2, VOCAB)), jnp.float32))

    def features(self, tokens, **options):
        total = jnp.cumsum(tokens, axis=1).astype(jnp.float32)
        read = jnp.ones_like(total).cumsum(axis=1)
        return jnp.stack([jnp.sin(total), jnp.cos(read)], axis=-1), None

    def head(self, x):
        return x @ self.weight[...]


def _log_softmax(logits):
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def _expected(model, context, continuation, length):
    """(Σ log p, greedy) in float64, one token at a time."""
    tokens = [*context, *continuation][-(length + 1) :]
    logp, greedy = 0.0, True
    for i in range(len(tokens) - len(continuation), len(tokens)):
        before = tokens[:i]
        if isinstance(model, _Bigram):
            logits = np.asarray(model.table[...], np.float64)[before[-1]]
        else:
            x = np.array([np.sin(sum(before)), np.cos(len(before))])
            logits = x @ np.asarray(model.weight[...], np.float64)
        logp += _log_softmax(logits)[tokens[i]]
        greedy &= bool(logits.argmax() == tokens[i])
    return logp, greedy


def _requests(rng, count, *, longest=60):
    sizes = rng.integers(1, longest, (count, 2))
    return [tuple(rng.integers(0, VOCAB, n).tolist() for n in pair) for pair in sizes]


def _check(model, requests, *, length, **options):
    found = loglikelihood(model, requests, length=length, **options)
    expected = [_expected(model, *request, length) for request in requests]
    # Up to 60 terms of float32 logits of order 1.
    np.testing.assert_allclose(found.logps, [logp for logp, _ in expected], rtol=2e-6, atol=1e-5)
    assert found.greedy.tolist() == [greedy for _, greedy in expected]
    assert found.tokens.tolist() == [len(continuation) for _, continuation in requests]
    assert found.cut.tolist() == [max(0, len(a) + len(b) - length - 1) for a, b in requests]


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", [1024, 7])  # whole, and in pieces that do not divide 64
def test_each_request_has_the_log_likelihood_of_its_right_end(chunk):
    rng = np.random.default_rng(0)
    # 61 = length + 1 fits whole, 62 loses one.
    edges = [([1] * 30, [2] * 31), ([1] * 31, [2] * 31), ([5], [2] * 60), ([4, 5], [2] * 60)]
    _check(_Prefix(), _requests(rng, 17) + edges, length=60, rows=4, chunk=chunk)


def test_greedy_means_every_token_was_the_most_likely():
    model = _Bigram()
    likely = np.asarray(model.table[...]).argmax(1)
    chain = [7]
    for _ in range(6):
        chain.append(int(likely[chain[-1]]))
    wrong = [*chain[1:-1], (chain[-1] + 1) % VOCAB]
    early = [(chain[1] + 1) % VOCAB]
    requests = [([7], chain[1:]), ([7], wrong), ([3, 7], chain[1:2]), ([7], early)]
    assert loglikelihood(model, requests, length=16).greedy.tolist() == [True, False, True, False]
    _check(model, requests, length=16)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 11))
def test_neither_order_nor_company_changes_a_request(seed, count):
    _check(_Prefix(), _requests(np.random.default_rng(seed), count, longest=20), length=31, rows=3)


def test_dropout_is_off_and_the_model_stays_as_it_was():
    model = _Bigram()
    model.train()
    _check(model, _requests(np.random.default_rng(5), 3), length=64)
    assert model.drop.deterministic is False


@pytest.mark.thorough
def test_few_programs_serve_many_lengths():
    model = _Bigram(vocab=17)
    before = likelihood._score._cache_size()
    rng = np.random.default_rng(1)
    requests = _requests(rng, 90, longest=100)
    loglikelihood(model, requests, length=256)
    # 32, 64, 128 and 256 tokens, with 8, 64 or up to 256 positions of continuations.
    assert likelihood._score._cache_size() - before <= 6
    count = likelihood._score._cache_size()
    loglikelihood(model, requests[:20], length=256)
    assert likelihood._score._cache_size() == count


def test_numpy_tokens_and_no_requests():
    model = _Bigram()
    lists = [([1, 2], [3]), ([4], [5, 6])]
    arrays = [(np.array(a, np.uint16), np.array(b, np.uint16)) for a, b in lists]
    from_arrays = loglikelihood(model, arrays, length=8)
    np.testing.assert_array_equal(from_arrays.logps, loglikelihood(model, lists, length=8).logps)
    assert loglikelihood(model, [], length=8).logps.shape == (0,)
    assert rolling_loglikelihood(model, [], length=8, prefix=0).logps.shape == (0,)


@pytest.mark.thorough
def test_the_attention_is_the_one_that_was_given():
    model = TinyDecoder(vocab_size=VOCAB, width=8, depth=1, rngs=nnx.Rngs(0))

    def blind(q, k, v, **options):
        return v

    plain = loglikelihood(model, [([1, 2, 3], [4])], length=8).logps
    assert abs(plain - loglikelihood(model, [([1, 2, 3], [4])], length=8, attention=blind).logps)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17, 30])
def test_a_document_is_predicted_once_with_as_much_context_as_fits(size):
    length, prefix = 8, 11
    model = _Prefix()
    document = np.random.default_rng(size).integers(0, VOCAB, size).tolist()
    # The definition: windows of 8 predictions; the last one reaches back to have 8 inputs.
    expected, predicted = [], 0
    if document:
        expected.append(_expected(model, [prefix], document[:length], length))
        predicted = min(length, size)
    while predicted < size:
        stop = min(predicted + length, size)
        inputs = document[stop - length - 1 : predicted]
        expected.append(_expected(model, inputs, document[predicted:stop], length))
        predicted = stop
    found = rolling_loglikelihood(model, [document, [1, 2], document], length=length, prefix=prefix)
    assert found.logps[0] == pytest.approx(sum(logp for logp, _ in expected), rel=1e-5, abs=1e-6)
    assert found.logps[2] == pytest.approx(found.logps[0], rel=1e-6)
    assert found.tokens.tolist() == [size, 2, size]
    assert found.cut.tolist() == [0, 0, 0]
    assert found.greedy[0] == all(greedy for _, greedy in expected)


def test_windows_are_the_published_example():
    # Length 4, ten tokens: the docstring of lm-evaluation-harness's `loglikelihood_rolling`.
    pairs = likelihood._windows(np.arange(-1, 10), 4, 4)
    assert [(a.tolist(), b.tolist()) for a, b in pairs] == [
        ([-1], [0, 1, 2, 3]),
        ([3], [4, 5, 6, 7]),
        ([5, 6, 7], [8, 9]),
    ]


@pytest.mark.parametrize("length, stride", [(7, 1), (7, 3), (8, 8), (100, 50), (1, 1)])
def test_windows_predict_every_token_once_from_at_least_length_minus_stride(length, stride):
    text = np.arange(40)
    windows = list(likelihood._windows(text, length, stride))
    assert np.concatenate([new for _, new in windows]).tolist() == text[1:].tolist()
    for context, new in windows:
        assert context.tolist() == list(range(new[0] - len(context), new[0]))
        assert len(context) + len(new) <= length + 1
        assert len(context) > min(length - stride, new[0] - 1)


def test_strides_and_prefixes_are_those_of_the_definition():
    model, length, stride = _Prefix(), 8, 3
    document = np.random.default_rng(5).integers(0, VOCAB, 30).tolist()
    # Target i is read with the inputs from the beginning of its window on.
    expected, predicted = 0.0, 0
    while predicted < 29:
        stop = min(predicted + (stride if predicted else length), 29)
        inputs, new = document[max(0, stop - length) : predicted + 1], document[predicted + 1 :]
        expected += _expected(model, inputs, new[: stop - predicted], length)[0]
        predicted = stop
    options = {"length": length, "stride": stride}
    own = rolling_loglikelihood(model, [document, [3], []], prefix=None, **options)
    assert own.logps[0] == pytest.approx(expected, rel=1e-5)
    assert own.tokens.tolist() == [29, 0, 0]
    assert own.logps[1:].tolist() == [0.0, 0.0]
    given = rolling_loglikelihood(model, [document[1:]], prefix=document[0], **options)
    assert given.logps[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("stride", [0, 9, -1])
def test_a_stride_that_would_leave_tokens_out_is_refused(stride):
    with pytest.raises(ValueError, match=rf"in \[1, length=8\], got stride={stride}; write .*=4"):
        rolling_loglikelihood(_Prefix(), [[1, 2]], length=8, prefix=0, stride=stride)


@pytest.mark.parametrize(
    "requests, options, must, came, instead",
    [
        ([([1], [2]), ([], [1])], {}, "at least one token", "0 and 1 in request 1", "begin-of-te"),
        ([([1], [])], {}, "at least one token", "1 and 0 in request 0", "give the begin"),
        ([([1], [2] * 9)], {}, "must fit the model", "9 tokens for length=8", "rolling_"),
        ([([1], [-1])], {}, "ids of the vocabulary", "got -1 in request 0", "the tokenizer"),
        ([([1], [13])], {}, "ids of the vocabulary", "13 in request 0 for a model of 13", "use t"),
        ([([14], [1])], {}, "ids of the vocabulary", "14 in request 0 for a model of 13", "use t"),
        ([], {"rows": 0}, "must be at least 1", "rows=0", "length=2048"),
        ([], {"chunk": 0}, "must be at least 1", "chunk=0", "length=2048"),
    ],
)
def test_what_cannot_be_scored_is_refused(requests, options, must, came, instead):
    with pytest.raises(ValueError, match=must) as error:
        loglikelihood(_Bigram(), requests, length=8, **options)
    assert came in str(error.value)
    assert instead in str(error.value)


def test_a_length_below_one_is_refused():
    with pytest.raises(ValueError, match=r"must be at least 1, got length=0.*length=2048"):
        rolling_loglikelihood(_Bigram(), [[1]], length=0, prefix=0)


def test_logits_that_are_nan_are_refused():
    model = _Bigram()
    model.table[...] = model.table[...].at[3].set(jnp.nan)
    with pytest.raises(ValueError, match=r"must be numbers, got nan in request 1 of 2; look for"):
        loglikelihood(model, [([1], [2]), ([3], [2])], length=8)


@pytest.mark.thorough
def test_the_whole_model_gives_the_same():
    model = TinyDecoder(vocab_size=VOCAB, width=8, depth=2, rngs=nnx.Rngs(1))
    requests = _requests(np.random.default_rng(2), 9, longest=14)
    found = loglikelihood(model, requests, length=32, rows=2)
    inputs = np.zeros((len(requests), 28), np.int32)
    for row, (context, continuation) in zip(inputs, requests, strict=True):
        row[: len(context) + len(continuation)] = [*context, *continuation]
    logits = nnx.jit(lambda m, t: m.head(m.features(t)[0]))(model, inputs)
    logps = _log_softmax(np.asarray(logits, np.float64))
    for i, (context, continuation) in enumerate(requests):
        places = len(context) - 1 + np.arange(len(continuation))
        # float32 through two layers.
        assert found.logps[i] == pytest.approx(logps[i, places, continuation].sum(), rel=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names", [["both"], pytest.param(["data", "fsdp"], marks=pytest.mark.slow)], ids=" ".join
)
def test_eight_devices_give_what_one_gives(names):
    done = warm_start.run([PROGRAM, *names], env=forced_devices.environment(8, cached=True))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    one = found.pop("one")
    for other in found.values():
        # float32, sums over 16 features in another order.
        np.testing.assert_allclose(other["logps"], one["logps"], rtol=3e-6)
        np.testing.assert_allclose(other["rolling"], one["rolling"], rtol=3e-6)
        assert other["greedy"] == one["greedy"]
        assert "must be divisible by the devices that share them" in other["refused"]
        assert "rows=6 for 8 devices; pass rows=8" in other["refused"]
    assert one["refused"] == ""
    parts = {"data": 1, "fsdp": 8, "both": 4}
    assert {name: run["parts"] for name, run in found.items()} == {n: parts[n] for n in names}


def test_texts_are_refused_where_ids_are_meant(unchecked):
    message = r"token ids, got the text 'ab' in request 1; write tokenizer.encode"
    with pytest.raises(TypeError, match=message):
        loglikelihood(_Bigram(), [([1], [2]), ([1], "ab")], length=4)
    with pytest.raises(TypeError, match=r"token ids, got the text 'ab' in request 0"):
        rolling_loglikelihood(_Bigram(), ["ab"], length=4, prefix=None)
