# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The choice of a step, and its arrays in the wanted form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_cluster import LocalTier
from dovetail_cluster.context import Context, Home
from dovetail_cluster.tier.files import Name
from dovetail_cluster.tier.folder import Key
from dovetail_cluster.tier.reading import Choice, newest


class Nothing:
    """A store without a step."""

    def save(self, step, **items):
        raise AssertionError

    def restore(self, **targets):
        return None

    def peek(self, name):
        return None

    def wait(self):
        pass


@pytest.fixture
def tier(tmp_path):
    home = Home(str(tmp_path), "127.0.0.1", 0.0)
    return LocalTier(Context(0, 1, 0, home=home), Nothing(), store_every=10**6)


def test_the_newest_step_that_is_whole_somewhere_is_chosen():
    def names(step, generation, *writers, hosts=3):
        return [Name(step, generation, writer, hosts) for writer in writers]

    first = names(7, 0, 0, 2) + names(8, 1, 0, 2)
    second = names(7, 0, 1, 0) + names(8, 1, 2)
    assert newest([first, second]) == Choice(Key(0, 7), (0, 1, 0))
    assert newest([first, [], second]) == Choice(Key(0, 7), (0, 2, 0))
    assert newest([first, [*second, *names(8, 1, 1)]]) == Choice(Key(1, 8), (0, 1, 0))
    # A file of the same step in another generation, or of another number of ranks, does not count.
    assert newest([first, [*second, *names(8, 0, 1), *names(8, 1, 1, hosts=4)]]).key.step == 7
    assert newest([[], []]) is None


def test_the_same_step_of_a_later_generation_is_newer():
    names = [Name(5, generation, 0, 1) for generation in (0, 1)]
    assert newest([names]).key == Key(1, 5)


def test_a_damaged_step_gives_way_to_the_one_before(tier, caplog):
    for step in (1, 2):
        tier.save(step, t={"w": jnp.full(4, step)})
    tier._settle()
    path = tier._folder.file(Name(2, 0, 0, 1))
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    assert tier.restore(t={"w": jnp.zeros(4, jnp.int32)})[0] == 1
    assert "a file of step 2 is damaged and not used" in caplog.text
    assert not path.exists()


def test_all_kinds_of_leaves_come_back_as_wanted(tier):
    rng = np.random.default_rng(1)
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    tree = {
        "half": jnp.asarray(rng.normal(size=(3, 5)), jnp.bfloat16),
        "rows": jax.device_put(rng.normal(size=(4 * mesh.size, 2)).astype(np.float32), rows),
        "key": jax.random.key(5, impl="rbg"),
        "keys": jax.random.split(jax.random.key(6), 3),
        "empty": jnp.zeros((0, 3)),
        "flags": np.array([True, False]),
        "wide": rng.normal(size=2),
        "count": 3,
        "rate": 0.25,
        "scalar": jnp.float32(1.5),
    }
    tier.save(1, t=tree)
    target = jax.tree.map(lambda x: x * 0 if isinstance(x, int | float) else x, tree)
    target["rows"] = jax.ShapeDtypeStruct(  # another placement
        tree["rows"].shape, np.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
    _, items = tier.restore(t=target)
    for name, value in tree.items():
        result = items["t"][name]
        assert type(result) is type(value), name
        if name in ("key", "keys"):
            assert result.dtype == value.dtype
            result, value = jax.random.key_data(result), jax.random.key_data(value)
        assert np.array_equal(np.asarray(result), np.asarray(value)), name
    assert items["t"]["rows"].sharding == target["rows"].sharding


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ({"w": jnp.zeros(4)}, r"t/w: saved int32\[4\], wanted \('float32', \(4,\)\)"),
        ({"w": jnp.zeros(5, int)}, r"t/w: saved int32\[4\], wanted \('int32', \(5,\)\)"),
        ({}, "t/w: saved, not wanted"),
        ({"w": jnp.zeros(4, int), "v": 1}, "t/v: wanted, not saved"),
    ],
)
def test_another_target_is_refused(tier, target, line):
    tier.save(1, t={"w": jnp.zeros(4, int)})
    with pytest.raises(ValueError, match=rf"must have the trees .*(?s:.)*{line}\nbuild the target"):
        tier.restore(t=target)


def test_objects_that_were_not_saved_are_refused(tier):
    class State:
        def get_state(self):
            return 1

        def set_state(self, state):
            self.state = state

    tier.save(1, a=State())
    with pytest.raises(ValueError, match=r"among those saved, got \['b'\]; step 1 has \['a'\]"):
        tier.restore(b=State())


def test_states_that_differ_need_as_many_ranks(tier):
    tier.save(1, t={})
    tier._settle()
    reader, choice = tier._reader, Choice(Key(0, 1), (0, 0))
    header = reader.headers(Choice(Key(0, 1), (0,)))[0]
    headers = [header._replace(states={"data": at}) for at in (3, 4)]
    reader._headers = choice, headers
    with pytest.raises(ValueError, match=r"got 1 ranks for 2 states of 'data'; save one state"):
        reader.states(choice)
    reader._headers = choice, [headers[0], headers[0]]
    assert reader.states(choice) == {"data": 3}
