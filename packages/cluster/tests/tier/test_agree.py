# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Agreement of ranks."""

import pytest

from dovetail_cluster.tier.agree import gather


def test_one_rank_agrees_with_itself():
    assert gather({"a": [1, None]}) == [{"a": [1, None]}]


@pytest.mark.thorough
def test_values_of_any_length_reach_all_ranks(cluster):
    def function(ctx):
        from dovetail_cluster.tier.agree import gather

        return gather({"é": "x" * 1000 * ctx.rank}), gather(None)

    expected = [{"é": "x" * 1000 * rank} for rank in range(3)]
    assert cluster.run(function).values == ((expected, [None] * 3),) * 3
