# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_models.inputs import check_rows, restart


def check(index):
    check_rows(index, of="page", limit="pages", rows=7, instead="Turn back.")


@pytest.mark.parametrize("bad, span", [([0, 7], "from 0 to 7"), ([-1, 3], "from -1 to 3")])
def test_an_index_without_a_row_is_refused(bad, span):
    with pytest.raises(ValueError, match=r"Every page must be in \[0, pages\)") as error:
        check(np.array(bad))
    assert f"got pages {span} with pages=7. Turn back." in str(error.value)


def test_what_has_a_row_or_is_not_known_passes():
    check(np.array([0, 6]))
    check(np.zeros(0, np.int32))
    jax.jit(lambda index: check(index) or index)(jnp.array([9]))


def test_positions_restart_in_each_run_of_a_segment():
    # Segment 1 comes back after 2: a new run.
    segments = jnp.array([[1, 1, 2, 2, 2, 1, 0, 0], [3, 3, 3, 3, 3, 3, 3, 4]])
    want = [[0, 1, 0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5, 6, 0]]
    np.testing.assert_array_equal(restart(segments), want)
