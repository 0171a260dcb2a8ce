# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Real hosts that die between two saves of the store, and one rank alone."""

import pathlib
import time

import jax
import numpy as np
import pytest

from dovetail_cluster import LocalTier, RankError, advised_interval_s
from dovetail_cluster.context import Context, Home


def expected(step):
    """Results of an unbroken run. Its last step is in the store."""
    total = sum(range(48)) * step * (step + 1) / 2
    return (step, total, step, {"step": step}), (step, total), (step, total)


def flip(path):
    """Changes one bit of the first block of a file."""
    data = bytearray(path.read_bytes())
    data[1] ^= 4
    path.write_bytes(data)


@pytest.mark.thorough("hosts end and start again, ten seconds long")
@pytest.mark.capability("a crash loses no step that is on the shelves")
@pytest.mark.capability("the copy of a damaged file, and the store after two neighbours die")
def test_a_host_dies_then_a_file_then_two_hosts(run, hosts, capfd):
    run.start(8, 9, 12)
    run.until(lambda: len(run.files(8, 0)) == 6)  # three, each with its copy
    hosts.host(1).kill_daemon()  # its shelf goes with it
    assert run.restored(1) == {8}  # the store has step 5
    run.go(8)

    run.until(lambda: len(run.files(9, 1)) == 6)
    before = run.shelves(1)
    copy = pathlib.Path(before["0"]) / "0" / "9.1.2.3"  # of rank 2's file, on the shelf of rank 0
    flip(copy)
    hosts.host(0).kill()
    assert run.restored(2) == {9}
    assert run.shelves(2) == before  # so rank 0 is asked for the file first, and rank 2 then
    printed = []  # comes by way of the daemon, and may be later than the file above

    def refused():
        printed.append(capfd.readouterr().err)
        return f"{copy}: state/w must have its digest" in "".join(printed)

    run.until(refused)
    assert not copy.exists()
    run.go(9)

    run.until(lambda: len(run.files(12, 2)) == 6)
    hosts.host(1).kill_daemon()
    hosts.host(2).kill_daemon()  # the neighbour, with the copy
    assert run.restored(3) == {10}  # of the store
    run.go(12)
    assert run.end().values == expected(14)


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("two hosts go on with the shelves of three, and three with those of two")
def test_another_number_of_hosts_goes_on_with_the_shelves(run, hosts, tmp_path):
    run.start(7, 9, hosts=(2, 3))
    run.until(lambda: len(run.files(7, 0)) == 6)
    hosts.host(2).remove()
    assert run.restored(1) == {7}
    run.go(7)
    run.until(lambda: len(run.files(9, 1)) == 4)
    (tmp_path / "more").touch()
    run.go(9)
    hosts.host(2).restore()  # after an agreed stop
    (step,) = run.restored(2)
    (tmp_path / "more").unlink()
    result = run.end()
    assert result.value[0] >= max(step, 14)
    assert result.values == expected(result.value[0])
    assert result.generations == 3


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("a shelf without room is refused with the numbers")
def test_a_limit_that_has_no_room_for_two_steps_says_how_much_has(run):
    # Each rank has 64 bytes of w. b (10) and the count (8) go to rank 0, the key (8) to rank 1.
    need = 2 * ((64 + 8) + (64 + 10 + 8))  # on rank 1, with the copy of rank 0's
    match = rf"room for two steps.* {need} bytes on one host, got limit_bytes=300; write LocalTier"
    run.start(tier={"limit_bytes": 300}, budget={"exception": 0})
    with pytest.raises(RankError, match=match):
        run.end()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"store_every": 0}, r"store_every must be at least 1, got 0; write store_every=100"),
        ({"store_every": 1, "limit_bytes": 0}, r"limit_bytes must be at least 1, got 0; write"),
    ],
)
def test_options_must_be_positive(tmp_path, options, match):
    context = Context(0, 1, 0, home=Home(str(tmp_path), "127.0.0.1", 0.0))
    with pytest.raises(ValueError, match=match):
        LocalTier(context, Steps(), **options)


def test_a_tier_needs_a_daemon():
    with pytest.raises(RuntimeError, match=r"by a rank of a cluster, got a context without .*; ca"):
        LocalTier(Context(0, 1, 0), Steps(), store_every=1)


class Position:
    """A state."""

    def __init__(self, at):
        self.at = at

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


class Steps:
    """A store in memory, for one rank."""

    def __init__(self):
        self.saved = {}

    def save(self, step, **items):
        assert step not in self.saved
        trees = {name: item for name, item in items.items() if not hasattr(item, "get_state")}
        states = {name: items[name].get_state() for name in items.keys() - trees}
        self.saved[step] = {**jax.tree.map(np.array, trees), **states}

    def restore(self, **targets):
        if not self.saved:
            return None
        items = self.saved[max(self.saved)]
        return max(self.saved), {name: items[name] for name in targets}

    def peek(self, name):
        return (max(self.saved), self.saved[max(self.saved)].get(name)) if self.saved else None

    def wait(self):
        pass


def refuse(name, size_bytes):
    raise OSError("no space")


def one_rank(folder, store, *, generation=0, **options):
    home = Home(str(folder), "127.0.0.1", time.time() - 60)
    return LocalTier(Context(0, 1, generation, home=home), store, **options)


def test_the_store_gets_each_step_that_passes_a_multiple_and_the_last(tmp_path):
    store = Steps()
    with one_rank(tmp_path, store, store_every=10) as tier:
        for step in range(3, 30, 3):
            tier.save(step, w=np.full(3, step))
        assert [*store.saved] == [12, 21]
        tier.wait()
        tier.wait()
        assert [*store.saved] == [12, 21, 27]
    assert store.saved[27]["w"].tolist() == [27, 27, 27]


def test_a_run_that_restores_its_last_step_still_gives_it_to_the_store(tmp_path):
    store = Steps()
    tier = one_rank(tmp_path, store, store_every=10)
    tier.save(4, w=np.full(3, 4), data=Position(5), metrics={"loss": 0.5})
    tier._settle()
    # A new rank, as after a crash.
    with one_rank(tmp_path, store, generation=1, store_every=10) as tier:
        assert tier.peek("data") == (4, {"at": 5})
        position = Position(0)
        step, items = tier.restore(w=np.zeros(3, int), data=position)
        assert (step, position.at, items["w"].tolist()) == (4, 5, [4, 4, 4])
        position.at = 9  # the state that was saved counts
    assert store.saved[4]["data"] == {"at": 5}
    assert store.saved[4]["w"].tolist() == [4, 4, 4]


def test_a_part_of_a_step_is_not_given_to_the_store(tmp_path):
    store = Steps()
    one = one_rank(tmp_path, store, store_every=10)
    one.save(4, w=np.full(3, 4), data=Position(5))
    one._settle()
    with one_rank(tmp_path, store, generation=1, store_every=10) as tier:
        assert tier.restore(data=Position(0))[0] == 4
    assert store.saved == {}


def test_a_newer_step_of_the_store_wins(tmp_path):
    store = Steps()
    with one_rank(tmp_path, store, store_every=100) as tier:
        tier.save(4, w=np.full(3, 4))
        store.saved[6] = {"w": np.full(3, 6)}
        assert tier.peek("w")[0] == 6
        step, items = tier.restore(w=np.zeros(3, int))
        assert (step, items["w"].tolist()) == (6, [6, 6, 6])


def test_metrics_reach_a_store_that_takes_them(tmp_path):
    class Measured(Steps):
        def save(self, step, *, metrics=None, **items):
            super().save(step, **items)
            self.metrics = metrics

    store = Measured()
    with one_rank(tmp_path, store, store_every=10) as tier:
        tier.save(4, metrics={"loss": 0.5}, w=np.zeros(3))
    assert store.metrics == {"loss": 0.5}


@pytest.mark.costly("it starts the hosts of its file")
def test_saves_and_waits_are_in_the_phase_save(tmp_path):
    class Watched(Steps):
        phases = ()

        def save(self, step, **items):
            self.phases += ((step, tier._context._state().phase),)
            super().save(step, **items)

        def wait(self):
            self.phases += (("wait", tier._context._state().phase),)

    store = Watched()
    with one_rank(tmp_path, store, store_every=10) as tier:
        tier.save(11, w=np.zeros(3))
        assert tier._context._state().phase == ""
        tier.save(12, w=np.zeros(3))
    assert store.phases == ((11, "save"), (12, "save"), ("wait", "save"))
    assert tier._context._state().phase == ""


@pytest.mark.thorough("processes of several hosts")
def test_after_a_save_that_the_shelf_failed_the_store_takes_the_next_one(tmp_path, caplog):
    store = Steps()
    with one_rank(tmp_path, store, store_every=100) as tier:
        tier._folder.new = refuse
        tier.save(4, w=np.zeros(3))
        tier._writer.join()
        del tier._folder.new
        tier.save(5, w=np.ones(3))
        assert [*store.saved] == [5]
        tier.save(6, w=np.ones(3))
        assert [*store.saved] == [5]
        assert tier.failures == 1
    assert "step 4 is not whole on the shelves: no space" in caplog.text


@pytest.mark.thorough("processes of several hosts")
def test_a_last_step_that_the_shelf_failed_is_an_error(tmp_path):
    tier = one_rank(tmp_path, Steps(), store_every=100)
    tier._folder.new = refuse
    tier.save(4, w=np.zeros(3))
    with pytest.raises(RuntimeError, match=r"step 4 must be whole on all shelves .*; restore"):
        tier.wait()


@pytest.mark.thorough
def test_advice_is_that_of_the_measured_times(tmp_path):
    tier = one_rank(tmp_path, Steps(), generation=2, store_every=100)
    with pytest.raises(RuntimeError, match=r"must follow a save, got none; call save first"):
        tier.advice()
    tier.save(1, w=np.zeros(3))
    advice = tier.advice()
    assert 30 <= advice.failure_s < 40  # 60 s and two restarts
    assert advice.interval_s == advised_interval_s(advice.save_s, advice.failure_s)
    assert 0 < advice.save_s < advice.failure_s


@pytest.mark.thorough
def test_while_an_exception_is_handled_wait_asks_no_other_rank(tmp_path):
    store = Steps()
    tier = one_rank(tmp_path, store, store_every=100)
    tier.save(1, w=np.zeros(3))
    try:
        raise KeyError
    except KeyError:
        tier.wait()
    assert store.saved == {}


def test_one_of_several_ranks_waits_for_no_store_while_an_exception_is_handled(tmp_path):
    class Waited(Steps):
        waits = 0

        def wait(self):
            self.waits += 1

    store = Waited()
    tier = one_rank(tmp_path, store, store_every=100)
    for hosts in (1, 2):
        tier._hosts = hosts
        try:
            raise KeyError
        except KeyError:
            tier.wait()
    assert store.waits == 1
