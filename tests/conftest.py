"""Shared fixtures: golden text files, rewritten with `pytest --update-golden`."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from hypothesis import settings

from polyml.api import Einsum
from polyml.codegen.llvm.functions import outline
from polyml.compiler.driver import Stages
from polyml.errors import PolymlError
from polyml.options import current
from polyml.runtime.keys import Key
from tests.sampled import leave_some

GOLDEN = Path(__file__).parent / "golden"

os.environ["POLYML_CACHE"] = (
    "0"  # code that an earlier run has kept must not hide a fault; tests of the cache name folders of their own
)

outline.LIGHT = 0  # threads share what little the tests' loops have to do, too; tests/codegen/passes/test_parallel_work.py has it as it is


def _verified(text: str, parse: Callable[[str], llvm.ModuleRef] = llvm.parse_assembly) -> llvm.ModuleRef:
    """LLVM reads values that are not computed on each way to their use without a word, and takes anything for them."""
    module = parse(text)
    module.verify()
    return module


llvm.parse_assembly = _verified

_lower = Einsum._stages


def _lowered_once(program: Einsum, key: Key) -> Stages:
    """Many tests call a program and then look at how it was lowered: a call drops what it has lowered, which is kept here for the look."""
    kept: tuple[str, Stages] | None = vars(program).get("_lowered_last")
    if kept is None or kept[0] != repr(key) or current("debug") or current("dump"):
        kept = vars(program)["_lowered_last"] = repr(key), _lower(program, key)
    return kept[1]


Einsum._stages = _lowered_once  # type: ignore[method-assign]


@pytest.fixture
def lowered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is kept."""
    monkeypatch.setattr(Einsum, "_stages", _lower)


# Where a run decides about a change the random programs are the same ones each time; elsewhere every run draws new ones.
settings.register_profile("ci", derandomize=True, database=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


gc.disable()  # what collection makes stays until the end


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not again and again among 14,000 of them and all modules (3 % of a run's time, and a quarter of the collection's)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 10)
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files from what the code prints now"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_some(items)
    if "slow" not in (config.getoption("-m") or ""):
        slow = [item for item in items if "slow" in item.keywords]
        items[:] = [item for item in items if "slow" not in item.keywords]
        config.hook.pytest_deselected(items=slow)  # not skipped: 6,000 reports take time, too


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """What runs code for a target that this machine is not (AVX-512 on AVX2, x86 on ARM) is skipped."""
    try:
        return (yield)
    except PolymlError as error:
        if "does not run on this machine" in str(error):
            pytest.skip(error.args[0])
        raise


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares `text` with tests/golden/<name>.txt (`name` may hold folders)."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip("\n") + "\n")
        assert path.exists(), f"no golden file {path.name}: run pytest --update-golden"
        assert text.rstrip("\n") + "\n" == path.read_text()

    return compare
