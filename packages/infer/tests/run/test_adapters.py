# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters that load, change and leave while others run, and who shares cached prefixes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines import decoder, engine, greedy
from stacked import RANK, WIDTH, StackedDecoder, adapter, merged

from dovetail_infer import Engine, Sampling
from dovetail_infer.run.adapters import Adapters
from dovetail_infer.step.weights import with_adapter

GREEDY = Sampling(max_tokens=8, temperature=0)
IDS = list(range(1, 18))  # four full pages


def ask(running: Engine, chosen: int | None, **changes: Any) -> Any:
    option = dataclasses.replace(GREEDY, adapter=chosen, **changes)
    return running.generate([IDS], option)[0]


@pytest.fixture(scope="module")
def stacked() -> Iterator[Engine]:
    """One program, so that nothing of a test waits for another size."""
    with engine(StackedDecoder(2), adapters=2, invariant=True) as shared:
        yield shared


@pytest.mark.thorough("programs of a decoder with adapters")
class TestEngine:
    """Each test leaves two adapters in the shared engine."""

    @pytest.mark.parameter("adapter", "adapters")
    def test_loading_compiles_nothing_and_equals_merged_weights(self, stacked: Engine) -> None:
        first = min(stacked._submission.adapters)
        want = greedy(decoder(), IDS, 8)
        assert ask(stacked, None).tokens.tolist() == want
        with pytest.raises(ValueError, match=r"free place of the engine's 2.*unload_adapter"):
            stacked.load_adapter(adapter(5))
        stacked.unload_adapter(first)
        before = stacked.stats().compiled
        for rank in (1, RANK):  # the second overwrites all of the first
            new = stacked.load_adapter(adapter(5 + rank, rank))
            found = ask(stacked, new).tokens.tolist()
            assert found == greedy(merged(adapter(5 + rank, rank)), IDS, 8) != want
            if rank == 1:
                stacked.unload_adapter(new)
        assert stacked.stats().compiled == before
        assert ask(stacked, None).tokens.tolist() == want
        assert new not in (0, 1)
        with pytest.raises(ValueError, match=rf"loaded adapters \(1, {new}\), got adapter=0\. Use"):
            ask(stacked, 0)

    def test_an_update_of_one_adapter_leaves_the_others_alone(self, stacked: Engine) -> None:
        first, second = stacked._submission.adapters
        kept = [ask(stacked, a) for a in (None, first, second)]
        version = stacked._steps.adapters.version(first)
        with stacked.stream(IDS, Sampling(max_tokens=30, adapter=second, seed=1)) as stream:
            iterator = iter(stream)
            next(iterator)
            stacked.update_weights(adapter(9), adapter=first, version=version + 4)
            list(iterator)
        assert stream.completion.versions.tolist() == [kept[2].version] * 30
        for a, old in ((None, kept[0]), (second, kept[2])):
            again = ask(stacked, a)
            assert again.cached_tokens == 16
            assert again.tokens.tolist() == old.tokens.tolist()
            assert again.versions.tolist() == old.versions.tolist()
        changed = ask(stacked, first)
        assert (changed.cached_tokens, changed.version) == (0, version + 4)
        assert changed.tokens.tolist() == greedy(merged(adapter(9)), IDS, 8)
        with pytest.raises(ValueError, match=f"present weights, {version + 4}, got"):
            stacked.update_weights(adapter(9), adapter=first, version=version + 4)
        stacked.update_weights({"norm": np.ones(WIDTH, "f4")})  # of the base: above all
        assert [ask(stacked, a).version for a in (None, first, second)] == [version + 5] * 3
        assert stacked.stats().version == version + 5

    def test_a_request_goes_on_with_its_updated_adapter(self, stacked: Engine) -> None:
        first = next(iter(stacked._submission.adapters))
        stacked.update_weights(adapter(3), adapter=first)
        old = stacked._steps.adapters.version(first)
        with stacked.stream(IDS, dataclasses.replace(GREEDY, max_tokens=40, adapter=first)) as s:
            iterator = iter(s)
            next(iterator)
            stacked.pause()
            stacked.update_weights(adapter(4), adapter=first)
            stacked.resume()
            list(iterator)
        versions, ids = s.completion.versions, s.completion.tokens.tolist()
        count = int((versions == old).sum())
        assert 0 < count <= 40
        assert versions.tolist() == [old] * count + [old + 1] * (40 - count)
        assert ids[:count] == greedy(merged(adapter(3)), IDS, count)
        if count < 40:
            assert ids[count:] == greedy(merged(adapter(4)), IDS + ids[:count], 40 - count)

    def test_an_unloaded_adapter_drains(self, stacked: Engine) -> None:
        first = next(iter(stacked._submission.adapters))
        stacked.update_weights(adapter(3), adapter=first)
        left = threading.Event()

        def unload() -> None:
            stacked.unload_adapter(first)
            left.set()

        stacked.pause()
        with stacked.stream(IDS, dataclasses.replace(GREEDY, adapter=first)) as stream:
            with pytest.raises(RuntimeError, match=r"paused engine with 1 of them.*resume"):
                stacked.unload_adapter(first)
            stacked.resume()
            thread = threading.Thread(target=unload)
            thread.start()
            list(stream)
            thread.join()
        assert left.is_set()
        found = stream.completion
        assert found.finish_reason == "length"
        assert found.tokens.tolist() == greedy(merged(adapter(3)), IDS, 8)
        with pytest.raises(ValueError, match=rf"got adapter={first}\."):
            ask(stacked, first)
        with pytest.raises(ValueError, match=rf"got adapter={first}\."):
            stacked.unload_adapter(first)
        assert stacked.load_adapter(adapter(0)) > first

    def test_a_request_that_begins_after_its_adapter_left_meets_no_other(
        self, stacked: Engine
    ) -> None:
        first = next(iter(stacked._submission.adapters))
        late = stacked.stream(IDS, dataclasses.replace(GREEDY, adapter=first))  # accepted
        stacked.unload_adapter(first)
        stacked.load_adapter(adapter(1))  # into the same place
        with late as stream:
            assert not list(stream)
        found = stream.completion
        assert (found.finish_reason, len(found.tokens)) == ("error", 0)
        assert found.error == f"adapter {first} has been unloaded: load it again"

    @pytest.mark.parameter("cache_salt")
    @pytest.mark.capability("cached prefixes shared by requests with one salt alone")
    def test_tenants_do_not_see_each_others_prompts(self, stacked: Engine) -> None:
        salts = ["one", "one", "two", None, "one", None]
        found = [ask(stacked, None, cache_salt=salt, seed=0) for salt in salts]
        cached = [completion.cached_tokens for completion in found]
        assert [cached[i] for i in (0, 1, 2, 4)] == [0, 16, 0, 16]
        assert cached[5] == 16
        assert len({tuple(completion.tokens) for completion in found}) == 1


def test_namespaces_of_different_fields_differ() -> None:
    made = []
    for base in (0, 1, 11):
        adapters = Adapters(12)
        adapters.update(None, base) if base else None
        for chosen in (None, 0, 1, 11):
            for own in (0, 111):
                if own and chosen is None:
                    continue
                if own and chosen is not None:
                    adapters.update(chosen, own)
                salts = (None, "1", "11", "1/1", "\x00", "0/-1", "\ud800")
                made += [adapters.namespace(chosen, salt) for salt in salts]
    assert len(set(made)) == len(made) == 3 * 7 * 7


def test_an_id_is_given_once_and_a_place_again() -> None:
    adapters = Adapters(2)
    left = adapters.leave(0)
    assert (0 in adapters, list(adapters), adapters.place(0)) == (False, [1], 0)
    with pytest.raises(ValueError, match="free place"):
        adapters.free_place()
    assert not left.is_set()
    adapters.drop(0)
    assert left.is_set()
    assert (adapters.add(adapters.free_place()), adapters.place(2)) == (2, 0)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"lora_b": None}, "got none of 'lora_b'. Pass a stack of it alone: lora.stack"),
        (dict.fromkeys(("lora_a", "lora_b", "scales")), "got no layer. Pass"),
        ({"lora_a": np.zeros((1, WIDTH, 4), "f4")}, r"float32\[1, 32, 3\].*\[1, 32, 4\]. Use"),
        ({"lora_a": np.zeros((WIDTH, 3), "f4")}, r"lora_a as float32\[32, 3\]. Use"),
        ({"scales": np.zeros(1, "i4")}, r"scales as int32\[1\]. Use an adapter of this model"),
        ({f"q.{x}": v for x, v in adapter(0).items()}, "got 'q.lora_a'. Build the engine with"),
    ],
    ids=str,
)
def test_adapters_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    stack = {name: np.concatenate([x] * 2) for name, x in adapter(0).items()}
    given = {k: v for k, v in {**adapter(1), **changes}.items() if v is not None}
    with pytest.raises(ValueError, match=words):
        with_adapter(stack, given, 0)


@pytest.mark.parametrize("on_host", [True, False])
def test_one_place_of_the_stack_changes(on_host: bool) -> None:
    stack = {name: np.concatenate([x] * 3) for name, x in adapter(0).items()}
    stack |= {f"other.{name}": x.copy() for name, x in stack.items()}
    now = stack if on_host else jax.tree.map(jnp.asarray, stack)
    low = adapter(1, rank=2)
    # The last two are arrays of a quantized kernel.
    rest = {name: np.ones(2) for name in ("norm", "q.kernel.codes", "q.kernel.scales")}
    new = with_adapter({**now, **rest}, {**low, **rest}, 1)
    assert new.keys() == stack.keys()
    for name, x in new.items():
        np.testing.assert_array_equal(x[np.array([0, 2])], stack[name][[0, 2]])
        if name.startswith("other."):  # a layer that the adapter lacks
            assert not np.any(x[1])
    np.testing.assert_array_equal(new["lora_a"][1], np.pad(low["lora_a"][0], ((0, 0), (0, 1))))
    np.testing.assert_array_equal(new["lora_b"][1], np.pad(low["lora_b"][0], ((0, 1), (0, 0))))
    np.testing.assert_array_equal(stack["lora_a"][1], stack["lora_a"][0])  # not written to
