"""`collector_rests`: no collection within, and the collector is what it was behind."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

import polyml
from polyml.collection import collector_rests, modules_stay


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_what_it_was(on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with collector_rests():
            with collector_rests():
                pass
            assert not gc.isenabled()
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Python 3.12: forks beside threads
def test_a_child_has_a_collector_though_another_thread_compiled() -> None:
    asked, done = threading.Event(), threading.Event()

    def compile_meanwhile() -> None:
        with collector_rests():
            asked.set()
            done.wait()

    thread = threading.Thread(target=compile_meanwhile)
    before = gc.isenabled()
    gc.enable()
    try:
        thread.start()
        asked.wait()
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert not gc.isenabled()
        assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join()
        (gc.enable if before else gc.disable)()


def test_it_rests_while_a_program_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYML_CACHE", "0")
    before, phases = gc.isenabled(), list[str]()
    program = polyml.einsum('def f(x: f64["N"]):\n    z[n] = 3.0*x[n]\n    return z\n')
    try:
        gc.enable()
        gc.collect()
        gc.callbacks.append(lambda phase, _: phases.append(phase))
        assert program(np.ones(3)).tolist() == [3.0] * 3
        assert len(phases) <= 4, "a collection or two behind it"
    finally:
        gc.callbacks.pop()
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_modules_make_is_old_unless_somebody_froze_objects(monkeypatch: pytest.MonkeyPatch, frozen: int) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    with modules_stay():
        made = [object()]
    assert any(one is made for one in gc.get_objects(generation=2)) == (not frozen)
