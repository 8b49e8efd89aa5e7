"""Who uses a device copy, for reports."""

from __future__ import annotations

import gc
import threading

from cuda_captures import users as module
from cuda_captures.users import Users


class User:
    pass


def test_those_that_are_there_are_named_once() -> None:
    users, some = Users(), [User() for _ in range(5)]
    for number, user in enumerate(some):
        users.note(user, f"kernel {number}")
        users.note(user, f"kernel {number}")
    assert users.names() == [f"kernel {number}" for number in range(5)]
    del some[1:4], user
    gc.collect()
    assert users.names() == ["kernel 0", "kernel 4"]


def test_no_more_is_held_than_twice_what_is_there() -> None:
    users, kept = Users(), [User() for _ in range(20)]
    for user in kept:
        users.note(user, "kept")
    for number in range(10_000):
        users.note(User() if number % 2 else kept[number % 20], "one of many")
    assert len(users._known) <= 41
    assert len(users.names()) == 20


def test_none_is_lost_between_threads() -> None:
    users, kept = Users(), [[User() for _ in range(2000)] for _ in range(8)]
    threads = [threading.Thread(target=lambda some=some: [users.note(user, "one") for user in some]) for some in kept]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(users.names()) == 16_000


def test_nobody_waits_for_another_thread() -> None:
    users, there = Users(), [User() for _ in range(100)]
    with module._lock:  # as a thread has it in which a finalizer runs
        thread = threading.Thread(target=lambda: [users.note(user, "one") for user in there])
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    assert len(users.names()) == 100
