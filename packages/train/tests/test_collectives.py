# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_train import collectives

LINE = "  %x.1 = {result} {kind}(%y), channel_id=1, {groups}, to_apply=%add"
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
FAR = ((0, 4), (1, 5), (2, 6), (3, 7))
# The notations of one set of groups, as XLA writes them.
NOTATIONS = {
    "replica_groups={{0,1},{2,3},{4,5},{6,7}}": PAIRS,
    "replica_groups=[4,2]<=[8]": PAIRS,
    "replica_groups=[4,2]<=[2,4]T(1,0)": FAR,
    "replica_groups=mesh['a'=2,'b'=1,'c'=4] {'a'}": FAR,
    "replica_groups=mesh['a'=2,'b'=2,'c'=2] {'c'}": PAIRS,
    "replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}": PAIRS,
    "replica_groups=mesh['a'=8] {'a':(4)2}": PAIRS,
    "replica_groups=mesh['a'=8] {'a':(1)2}": FAR,
    "replica_groups=mesh['a'=2,'b'=4] {'a','b'}": (tuple(range(8)),),
    "replica_groups={}": (tuple(range(8)),),
    "source_target_pairs={{0,1},{2,3},{4,5},{6,7}}": PAIRS,
}
MESHES = ["data=8", "fsdp=8", "data=2,fsdp=4", "data=4,tensor=2", "context=2,data=4"]


class _Text:
    def __init__(self, *lines):
        self.lines = ("HloModule jit_f, num_partitions=8", *lines)

    def as_text(self):
        return "\n".join(self.lines)


@pytest.mark.parametrize("groups", NOTATIONS)
def test_the_groups_of_every_notation_are_read(groups):
    line = LINE.format(
        result="(bf16[3,5]{1,0}, f32[], pred[7]{0})", kind="all-reduce", groups=groups
    )
    [found] = collectives(_Text(line, "  %z = f32[9] add(%a, %b)"))
    assert (found.kind, found.groups) == ("all-reduce", NOTATIONS[groups])
    assert found.result_bytes == 2 * 3 * 5 + 4 + 7


def test_a_collective_crosses_slices_if_a_group_does():
    halves = [0, 0, 0, 0, 1, 1, 1, 1]
    near, far = collectives(
        _Text(
            LINE.format(
                result="f32[2]", kind="all-gather-start", groups="replica_groups=[4,2]<=[8]"
            ),
            LINE.format(
                result="f32[2]", kind="all-to-all", groups="replica_groups=[4,2]<=[2,4]T(1,0)"
            ),
        )
    )
    assert (near.kind, near.crosses(halves)) == ("all-gather", False)
    assert (far.kind, far.crosses(halves)) == ("all-to-all", True)
    assert not far.crosses([0] * 8)


def test_an_unknown_notation_is_refused():
    line = LINE.format(result="f32[2]", kind="all-reduce", groups="replica_groups=new<8>")
    with pytest.raises(ValueError, match=r"known notation, got .*new<8>.*; compile with"):
        collectives(_Text(line))


@pytest.fixture(scope="module")
def steps(on_eight_devices):
    return on_eight_devices("collectives.py", *MESHES)


@pytest.mark.thorough
@pytest.mark.parametrize("mesh", MESHES)
def test_no_device_reduces_with_itself(steps, mesh):
    assert steps[mesh]
    assert [step for step in steps[mesh] if all(len(group) == 1 for group in step[2])] == []
