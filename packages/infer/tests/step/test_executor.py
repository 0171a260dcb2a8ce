# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The executor against the float64 oracle, under random schedules, and its state over time."""

import dataclasses
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_infer import reference
from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.step.batch import Batch, SlotState
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.step.executor import Executor
from dovetail_infer.step.layout import discover
from dovetail_infer.step.placement import Placement
from dovetail_infer.testing import TinyDecoder, drive, options, whole_logits

VOCAB, LIMIT, ROWS = 51, 24, 3
LENGTHS = (3, 4, 5, 7, 8, 9, LIMIT - 1)
OPTIONS = {
    "plain": {},
    "windows": {"windows": (None, 5), "depth": 3},
    "sinks": {"sinks": True, "soft_cap": 2.0},
    "latent": {"latent": True},
    "experts": {"experts": 5},
}


@functools.cache
def _model(name="plain", seed=1):
    given = {"vocab_size": VOCAB, "embed": 24, **OPTIONS[name]}
    return TinyDecoder(**given, rngs=nnx.Rngs(seed))


def _executor(model, *, invariant=True, record_experts=False, **given):
    layout = discover(model, max_length=LIMIT, record_experts=record_experts)
    groups = tuple(Group(window=window, pages=60) for window in layout.windows)
    limits = Limits(page_size=4, step_tokens=16, max_rows=ROWS, max_length=LIMIT, groups=groups)
    return Executor(
        model,
        operations=reference,
        layout=layout,
        limits=limits,
        max_logprobs=4,
        invariant=invariant,
        **given,
    )


@functools.cache
def _shared():
    return _executor(_model())


def _prompts():
    rng = np.random.default_rng(3)
    return [rng.integers(0, VOCAB, n) for n in LENGTHS]


def _logps(model, ids):
    logits = whole_logits(model, ids)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def _batch(ids, *, start=0, slot=1, **changes):
    """A batch of one request, on pages 6 to 11 of each group."""
    ids = np.asarray(ids, np.int32)
    given = options(1)._replace(**changes)
    return Batch(
        tokens=ids,
        counts=np.array([len(ids)], np.int32),
        lengths=np.array([start + len(ids)], np.int32),
        slots=np.array([slot], np.int32),
        samples=np.ones(1, np.bool_),
        tables=np.arange(6, 12, dtype=np.int32)[None, None],
        options=given,
        adapters=np.full(1, -1, np.int32),
        targets=np.append(ids[1:], -1).astype(np.int32),
    )


@pytest.mark.thorough
@pytest.mark.capability("steps of the engine")
@pytest.mark.parametrize("name", OPTIONS)
def test_a_random_schedule_has_the_log_probabilities_of_whole_rows(name):
    model, prompts = _model(name), _prompts()
    executor = _shared() if name == "plain" else _executor(model)
    results = drive(executor, prompts, max_tokens=5)
    for prompt, (tokens, logprobs, of_prompt) in zip(prompts, results, strict=True):
        assert len(tokens) == min(5, LIMIT - len(prompt))
        want = _logps(model, np.concatenate([prompt, tokens[:-1]]))
        drawn = want[len(prompt) - 1 :]
        # Sums of at most 48 products of 6e-8, through three layers.
        np.testing.assert_allclose(logprobs, drawn.max(axis=-1), rtol=0, atol=1e-5)
        np.testing.assert_array_equal(tokens, drawn.argmax(axis=-1))
        given = want[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(of_prompt, given, rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_the_schedule_does_not_change_what_is_drawn():
    runs = [
        drive(_shared(), _prompts(), max_tokens=6, temperature=1.3, seed=seed, kinds=kinds)
        for seed, kinds in enumerate([("score",), ("plain",), ("plain", "full", "score")])
    ]
    for of_request in zip(*runs, strict=True):
        for other in of_request[1:]:
            np.testing.assert_array_equal(other.tokens, of_request[0].tokens)
            np.testing.assert_allclose(other.logprobs, of_request[0].logprobs, rtol=0, atol=1e-5)
    assert any(list(r.tokens) != sorted(r.tokens) for r in runs[0])


@pytest.mark.costly("every mixture of rows through one program")
def test_company_and_chunks_do_not_change_a_bit_in_one_program():
    prompts = _prompts()
    together = drive(_shared(), prompts, max_tokens=6, seed=5)
    for i in (1, 4):
        alone = drive(_shared(), [prompts[i]], max_tokens=6, seed=i)[0]
        for ours, theirs in zip(alone, together[i], strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.thorough
def test_all_sizes_of_programs_agree():
    executor = _executor(_model(), invariant=False)
    executor.compile([p.bucket for p in executor.programs() if p.bucket.kind != "full"], threads=2)
    results = drive(executor, _prompts(), max_tokens=5, kinds=("plain", "score"))
    for ours, theirs in zip(results, drive(_shared(), _prompts(), max_tokens=5), strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    assert executor.late_compiles == 0


@pytest.mark.thorough("it compiles all programs of an executor")
@pytest.mark.capability("steps before all programs are compiled")
def test_steps_run_while_programs_are_compiled(monkeypatch):
    executor = _executor(_model(), invariant=False)
    lower, gate = executor._lower, threading.Event()

    def gated(*key):
        assert threading.current_thread() is not executor._rest or gate.wait(60)
        return lower(*key)

    monkeypatch.setattr(executor, "_lower", gated)
    few = executor.compile_few()
    results = drive(executor, _prompts(), max_tokens=5, kinds=("plain", "score"))
    for ours, theirs in zip(results, drive(_shared(), _prompts(), max_tokens=5), strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    assert 0 < len(few) == sum(p.compiled for p in executor.programs()) < 4
    rest = executor._rest
    gate.set()
    rest.join()
    assert all(program.compiled for program in executor.programs())
    executor.dispatch(_batch([1]), kind="plain").read()
    assert Bucket(1, 1, "plain") in {bucket for bucket, _ in executor._choices.values()}
    assert executor.late_compiles == 0
    assert len(_executor(_model()).compile_few()) == 3  # all: other programs have other bits


@pytest.mark.thorough
def test_no_program_copies_the_pages_of_a_layer():
    """XLA made the write of a program with one row a copy of the pages."""
    layout = discover(_model(), max_length=LIMIT)
    # A pool of more bytes than all logits, weights and keys that a step reads.
    groups = tuple(Group(window=window, pages=2**13) for window in layout.windows)
    limits = Limits(page_size=4, step_tokens=16, max_rows=ROWS, max_length=LIMIT, groups=groups)
    executor = Executor(
        _model(), operations=reference, layout=layout, limits=limits, max_logprobs=4
    )
    least = min(pool.nbytes for pool in executor._state.pools)
    programs = executor.compile(threads=2)
    assert {program.bucket.tokens for program in programs} >= {1, 2, ROWS, 16}
    assert max(program.bytes for program in programs) < least / 4


@pytest.mark.thorough
@pytest.mark.capability("steps of the engine", on="cuda")
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_the_programs_of_a_gpu_agree(temperature, monkeypatch):
    """Two rows at least, greedy steps in programs of their own, and no conditional."""
    given = {"max_tokens": 5, "temperature": temperature, "kinds": ("plain",)}
    want = drive(_shared(), _prompts(), **given)
    monkeypatch.setattr(Placement, "platform", "gpu")
    executor = _executor(_model(), invariant=False)
    for ours, theirs in zip(drive(executor, _prompts(), **given), want, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=0, atol=1e-5)
    used = [p.bucket for p in executor.programs() if p.compiled]
    assert min(bucket.rows for bucket in used) == 2
    assert ("greedy" in {bucket.kind for bucket in used}) == (temperature == 0)
    text = executor._lower(Bucket(2, 2, "plain"), False).as_text()
    assert "stablehlo.case" not in text
    assert "stablehlo.case" in _shared()._lower(Bucket(2, 2, "plain"), False).as_text()


@pytest.mark.thorough
def test_one_request_at_a_time_on_a_gpu(monkeypatch):
    """The second row of each step is padding."""
    monkeypatch.setattr(Placement, "platform", "gpu")
    model = _model()
    limits = dataclasses.replace(_shared().limits, max_rows=1)
    executor = Executor(
        model, operations=reference, layout=_shared().layout, limits=limits, max_logprobs=4
    )
    prompt = _prompts()[3]
    (result,) = drive(executor, [prompt], max_tokens=5, kinds=("plain", "score"))
    want = _logps(model, np.concatenate([prompt, result.tokens[:-1]]))[len(prompt) - 1 :]
    np.testing.assert_array_equal(result.tokens, want.argmax(axis=-1))
    np.testing.assert_allclose(result.logprobs, want.max(axis=-1), rtol=0, atol=1e-5)


def test_outputs_that_a_step_was_asked_for():
    ids = [5, 9, 2, 44]
    want = _logps(_model(), ids)
    top_k = np.array([3], np.int32)
    warm = {"temperature": np.ones(1, np.float32), "top_k": top_k}
    handle = _shared().dispatch(_batch(ids, **warm), kind="score", want=("top", "kept", "prompt"))
    results = handle.read()
    assert handle.done()
    assert results.experts is None
    likeliest = np.argsort(-want[-1])
    assert results.top.top_tokens.tolist() == [likeliest[:4].tolist()]
    kept = [i for i in range(VOCAB) if results.kept[0, i // 32] >> (i % 32) & 1]
    assert kept == sorted(likeliest[:3])
    assert results.prompt.top_tokens.shape == (4, 4)
    np.testing.assert_array_equal(results.prompt.top_tokens[:, 0], want.argmax(axis=-1))
    token = results.tokens[0]
    assert token in kept
    mass = np.logaddexp.reduce(want[-1, kept])
    np.testing.assert_allclose(results.log_mass, [mass], rtol=0, atol=1e-5)
    np.testing.assert_allclose(results.sampled_logprobs, [want[-1, token] - mass], atol=1e-5)


@pytest.mark.thorough
def test_a_program_without_an_output_refuses_it():
    with pytest.raises(ValueError, match=r"asked for, got want='top' of a program.*kind='full'"):
        _shared().dispatch(_batch([1]), kind="plain", want=("top",))


@pytest.mark.thorough
def test_experts_are_recorded():
    model = _model("experts")
    executor = _executor(model, record_experts=True)
    results = executor.dispatch(_batch([5, 9, 2]), kind="plain", want=("experts",)).read()
    assert results.experts.shape == (3, 2, 2)
    *_, tapped = model.features(jnp.array([[5, 9, 2]]), taps=("experts",))
    np.testing.assert_array_equal(results.experts, tapped["experts"][:, 0].swapaxes(0, 1))


class _Adapted(TinyDecoder):
    """Adds the id of the adapter to the first feature of each token."""

    def features(self, tokens, *, adapter_ids, **given):
        x, kv = super().features(tokens, **given)
        return x.at[..., 0].add(adapter_ids), kv


@pytest.mark.thorough
def test_each_token_has_the_adapter_of_its_row():
    model = _Adapted(vocab_size=VOCAB, embed=24, depth=1, rngs=nnx.Rngs(1))
    plain = TinyDecoder(vocab_size=VOCAB, embed=24, depth=1, rngs=nnx.Rngs(1))
    layout = discover(plain, max_length=LIMIT)
    limits = _shared().limits
    executor = Executor(
        model, operations=reference, layout=layout, limits=limits, adapters=4, invariant=True
    )
    ids = jnp.array([5, 9, 2])
    x = plain.features(ids[None])[0][0, -1]
    for adapter in (-1, 2):
        batch = _batch(ids)._replace(adapters=np.array([adapter], np.int32))
        logits = plain.head(x.at[0].add(adapter)[None])[0]
        got = executor.dispatch(batch, kind="plain").read().logprobs[0]
        np.testing.assert_allclose(got, jax.nn.log_softmax(logits).max(), rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_slots_change_and_count_the_tokens_of_their_request():
    executor, ids = _shared(), [5, 9, 2, 44]
    best = int(_logps(_model(), ids)[-1].argmax())
    state = SlotState(
        bias=np.zeros(VOCAB, np.float32),
        prompt=np.zeros(VOCAB, np.bool_),
        stops=np.zeros(VOCAB, np.bool_),
        counts=np.zeros(VOCAB, np.int32),
    )
    bias = state.bias.copy()
    bias[17] = 100
    executor.set_slot(1, state._replace(bias=bias))
    executor.set_slot(2, state)

    def drawn(kind, slot, **changes):
        return int(executor.dispatch(_batch(ids, slot=slot, **changes), kind=kind).read().tokens[0])

    assert drawn("full", 1) == 17
    assert drawn("plain", 1) == best  # reads no state
    assert drawn("full", 2) == best
    penalty = {"presence_penalty": np.full(1, 50, np.float32)}
    assert drawn("full", 2, **penalty) != best  # counted by the step before
    executor.set_slot(2, state)
    assert drawn("full", 2, **penalty) == best


@pytest.mark.thorough
def test_a_rule_draws_for_its_rows():
    executor = _executor(_model())

    def second(warped, key):
        return jnp.argsort(-warped)[1]

    program = executor.rules.program(second)
    ids, warm = [5, 9, 2], np.ones(1, np.float32)
    batch = _batch(ids, ruled=np.ones(1, bool), temperature=warm)
    handle = executor.dispatch(batch, kind="plain", want=("top",), rules={1: program})
    results = handle.read()
    assert handle.done()
    logps = _logps(_model(), ids)[-1]
    token = np.argsort(-logps)[1]
    assert results.tokens[0] == token
    # Sums of 51 terms in float32.
    assert np.isnan(results.sampled_logprobs[0])
    for numbers in (results.logprobs, results.top.logprobs):
        np.testing.assert_allclose(numbers[0], logps[token], atol=1e-5)
    assert (results.top.ranks[0], results.log_mass[0]) == (2, 0)
    assert executor.late_compiles == 0  # the first rule compiles, which is not late
    # The next step reads the token on the device.
    after = executor.dispatch(_batch([-1], start=3), kind="plain").read()
    assert after.tokens[0] == _logps(_model(), [*ids, int(token)])[-1].argmax()


@pytest.mark.thorough
def test_a_row_with_nan_draws_minus_one_and_spoils_nothing():
    model = TinyDecoder(vocab_size=VOCAB, embed=24, rngs=nnx.Rngs(1))
    model.embedding[...] = model.embedding[...].at[7].set(jnp.nan)
    executor = _executor(model)
    for ids, right in (([5, 7], False), ([5, 9], True)):
        results = executor.dispatch(_batch(ids), kind="plain").read()
        assert (results.tokens[0] >= 0) == right
    assert executor.dispatch(_batch([-1], start=2), kind="plain").read().tokens[0] >= 0


def test_new_weights_are_those_of_the_next_step():
    executor, other = _executor(_model()), _model(seed=2)
    ids = [5, 9, 2]
    before = executor.dispatch(_batch(ids), kind="score")
    executor.update_weights(nnx.state(other))
    after = executor.dispatch(_batch(ids), kind="score")
    for handle, model in ((before, _model()), (after, other)):
        want = _logps(model, ids)[-1].max()
        np.testing.assert_allclose(handle.read().logprobs, [want], rtol=0, atol=1e-5)
    wrong = {"embedding": np.zeros((VOCAB, 24), np.float32), "nothing": np.zeros(3)}
    with pytest.raises(ValueError, match="got 'nothing'"):
        executor.update_weights(wrong)
    np.testing.assert_array_equal(
        executor.dispatch(_batch(ids), kind="score").read().logprobs, after.read().logprobs
    )


@pytest.mark.thorough
def test_late_compilations_are_counted():
    executor = _executor(_model(), invariant=False)
    executor.compile([Bucket(1, 1, "plain")])
    executor.dispatch(_batch([1]), kind="plain").read()
    assert executor.late_compiles == 0
    executor.dispatch(_batch([1, 2]), kind="plain").read()
    assert executor.late_compiles == 1
    compiled = [p for p in executor.programs() if p.compiled]
    assert {p.bucket for p in compiled} == {Bucket(1, 1, "plain"), Bucket(2, 2, "plain")}
    assert all(p.compile_s > 0 and p.bytes > 0 for p in compiled)


def test_a_released_executor_says_so_and_starts_anew():
    executor = _executor(_model())
    first = executor.dispatch(_batch([5, 9]), kind="score").read()
    executor.release()
    with pytest.raises(RuntimeError, match=r"needs the cache, got none.*restore\(\)"):
        executor.dispatch(_batch([5, 9]), kind="score")
    executor.restore()
    again = executor.dispatch(_batch([5, 9]), kind="score").read()
    np.testing.assert_array_equal(again.logprobs, first.logprobs)


def test_pools_are_updated_in_place():
    executor = _shared()
    executor.dispatch(_batch([5, 9]), kind="score").read()
    pool = executor._state.pools[0]
    pointer = pool.unsafe_buffer_pointer()
    executor.dispatch(_batch([5, 9]), kind="score").read()
    assert pool.is_deleted()
    assert executor._state.pools[0].unsafe_buffer_pointer() == pointer
