"""What the schedule of a program says, for tests that look at no loops: without making them, which takes most of the time."""

from __future__ import annotations

import pytest

from polyml.api import Einsum
from polyml.compiler.loops import LoweredRegion
from polyml.schedule.schedule import Schedule


class _Made(Exception):
    """With a schedule."""


def _stop(region: object, scop: object, dependences: object, scheduled: Schedule, *_: object) -> LoweredRegion:
    raise _Made(scheduled)


def schedule_of(program: Einsum, *arguments: object) -> Schedule:
    """The schedule of a program's first region."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyml.compiler.region.in_versions", _stop)
        with pytest.raises(_Made) as made:
            program.lower(*arguments)
    (scheduled,) = made.value.args
    assert isinstance(scheduled, Schedule)
    return scheduled


def notes_of(program: Einsum, *arguments: object) -> str:
    """Its notes, one a line."""
    return "\n".join(f"{n.stage}: {n.subject}: {n.text}" for n in schedule_of(program, *arguments).notes)
