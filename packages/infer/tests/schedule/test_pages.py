# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_infer.schedule.pages import PagePool


def test_free_pages_go_first_then_the_cached_page_released_first():
    pool = PagePool(4)
    pages = pool.take(3)
    for page, digest in zip(pages, (b"a", b"b", b"c"), strict=True):
        pool.register(page, digest)
    pool.release([pages[1], pages[0], pages[2]])
    assert pool.counts() == (0, 3, 1)
    assert set(pool.take(2)) == {3, pages[1]}
    assert b"b" not in pool
    assert b"a" in pool
    pool.check({3: 1, pages[1]: 1})


def test_a_shared_page_is_neither_evicted_nor_cached_until_its_last_user_goes():
    pool = PagePool(1)
    [page] = pool.take(1)
    pool.register(page, b"a")
    assert pool.share([b"a"]) == [page]
    pool.release([page])
    assert pool.counts() == (1, 0, 0)
    pool.release([page])
    assert pool.counts() == (0, 1, 0)
    assert pool.cached([b"a"]) == 1
    assert pool.share([b"a"]) == [page]
    assert pool.cached([b"a"]) == 0
    pool.check({page: 1})


def test_the_first_page_of_a_digest_stays_and_the_second_is_private():
    pool = PagePool(2)
    first, second = pool.take(2)
    pool.register(first, b"a")
    pool.register(second, b"a")
    pool.release([second, first])
    assert pool.counts() == (0, 1, 1)
    assert pool.share([b"a"]) == [first]


def test_a_forgotten_page_becomes_free_at_once_or_when_it_is_released():
    pool = PagePool(2)
    used, unused = pool.take(2)
    pool.register(used, b"a")
    pool.register(unused, b"b")
    pool.release([unused])
    pool.forget()
    assert b"a" not in pool
    assert pool.counts() == (1, 0, 1)
    pool.release([used])
    assert pool.counts() == (0, 0, 2)


@pytest.mark.parametrize("users", [{}, {0: 1, 1: 1}, {1: 2}])
def test_a_recount_finds_a_leak_and_a_page_without_its_holder(users):
    pool = PagePool(2)
    assert pool.take(1) == [0]
    pool.check({0: 1})
    with pytest.raises(AssertionError):
        pool.check(users)
