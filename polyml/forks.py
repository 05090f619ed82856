"""Locks that a fork waits for: a child has the thread that forked alone, and what another one held in its parent would never be free."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack

__all__ = ["wait_at_forks"]

_locks: list[AbstractContextManager[object]] = []
_held = ExitStack()


def wait_at_forks(lock: AbstractContextManager[object], *, first: bool = False) -> None:
    """A fork waits for the lock: ahead of the others, or behind those that are there. Nobody who holds it waits for one ahead of it."""
    _locks.insert(0 if first else len(_locks), lock)


def _before() -> None:
    global _held
    with ExitStack() as held:
        for lock in tuple(_locks):
            held.enter_context(lock)
        _held = held.pop_all()


def _after() -> None:
    _held.pop_all().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
