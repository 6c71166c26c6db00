"""Other interpreters compute what they are handed, say what went wrong, and are gone afterwards."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from math import hypot

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from toposcope.core.cluster import one_thread
from toposcope.core.errors import BadValue
from toposcope.core.interpreters import InterpreterLost, Interpreters, as_done
from toposcope.core.ranges import parse_range


def test_answers_come_back_in_order_and_as_they_are_done() -> None:
    with Interpreters(2) as pool:
        futures = [pool.submit(hypot, 3 * n, 4 * n) for n in range(9)]
        assert {each.result() for each in as_done(futures)} == {5.0 * n for n in range(9)}
        assert [each.result() for each in futures] == [5.0 * n for n in range(9)]
        assert {pool.submit(os.getpid).result() for _ in range(4)}.isdisjoint({os.getpid()})


def test_what_is_shared_comes_before_the_arguments() -> None:
    matrix = np.arange(40_000.0).reshape(200, 200)  # more than a pipe holds at once
    with Interpreters(2) as pool:
        pool.share(matrix)
        sums = [pool.submit(np.sum, axis) for axis in (0, 1, 0)]
        for future, axis in zip(sums, (0, 1, 0), strict=True):
            assert (future.result() == matrix.sum(axis=axis)).all()


def test_a_module_is_imported_before_the_first_call() -> None:
    with Interpreters(1, ready="toposcope.core.ranges") as pool:
        assert pool.submit(eval, "'toposcope.core.ranges' in __import__('sys').modules").result()
    with Interpreters(1) as pool:
        assert not pool.submit(eval, "'toposcope.core.ranges' in __import__('sys').modules").result()


def test_a_users_mistake_is_told_and_the_interpreter_goes_on() -> None:
    with Interpreters(1) as pool:
        with pytest.raises(BadValue, match="9"):
            pool.submit(parse_range, "9", 4).result()
        assert pool.submit(parse_range, "1-2", 4).result() == [1, 2]


def test_a_lost_interpreter_and_a_bug_are_both_noticed(capfd: pytest.CaptureFixture[str]) -> None:
    with Interpreters(1) as pool, pytest.raises(InterpreterLost, match="code 7"):
        pool.submit(os._exit, 7).result()
    with Interpreters(1) as pool, pytest.raises(InterpreterLost, match="code 1"):
        pool.submit(hypot, "three", "four").result()
    assert "TypeError" in capfd.readouterr().err  # with its traceback


def test_none_is_left_when_the_caller_stops_in_the_middle() -> None:
    ids: set[int] = set()
    waiting: list[Future[None]] = []

    def interrupted() -> None:
        with Interpreters(2) as pool:
            ids.update(pool.submit(os.getpid).result() for _ in range(4))
            waiting.extend(pool.submit(time.sleep, 60) for _ in range(5))
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 30
    assert all(each.done() for each in waiting)
    for process in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_products_keep_to_one_thread_where_work_is_spread() -> None:
    def threads() -> set[int]:
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        assert threads() == {2}
        with one_thread():
            assert threads() == {1}
        assert threads() == {2}
