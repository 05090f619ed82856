"""Options, their environment variables, and the debug output that they ask for."""

import re
from pathlib import Path

import numpy as np
import pytest

from polyml import debug
from polyml.errors import PolymlError
from polyml.options import VARIABLES, Options, overridden
from polyml.target import Target


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in VARIABLES:
        monkeypatch.delenv(row.name, raising=False)


def test_later_layers_win(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Options.make() == Options()
    monkeypatch.setenv("POLYML_DEBUG", "2")
    monkeypatch.setenv("POLYML_NUM_THREADS", "3")
    assert Options.make() == Options(debug=2, threads=3)
    with overridden(debug=4, fusion=False):
        assert Options.make() == Options(debug=4, threads=3, fusion=False)
        assert Options.make(debug=5).debug == 5
        assert debug.debug_level() == 4
    assert debug.debug_level() == 2


def test_every_variable_reaches_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "debug": ("6", 6), "dump": ("/d", "/d"), "threads": ("2", 2), "target": ("x86-64-v3", Target("x86-64-v3")),
        "scheduler": ("written", "written"), "fusion": ("0", False), "vectorize": ("0", False), "parallel": ("0", False),
        "costs": ("reuse,order", ("reuse", "order")), "precise": ("1", True), "atomics": ("1", True), "verify": ("1", True), "budget": ("100", 100),
    }  # fmt: skip
    for row in VARIABLES:
        if row.field is not None:
            text, value = values.pop(row.field)
            monkeypatch.setenv(row.name, text)
            assert getattr(Options.make(), row.field) == value
    assert not values


def test_folders_may_be_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert Options.make(dump="~/stages").dump == "/home/someone/stages"
    assert Options.make(dump=Path("~/stages")).dump == "/home/someone/stages"


def test_target_by_name() -> None:
    assert Options.make(target="x86-64-v4").machine == Target("x86-64-v4")
    assert Options.make(target="host").machine == Target.host()
    assert hash(Options.make(tile_sizes=[4, 4])) == hash(Options(tile_sizes=(4, 4)))
    assert Options.make(threads=np.int64(2), tile_sizes=[np.int32(4)]) == Options.make(threads=2, tile_sizes=(4,))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"fuson": True}, 'unknown option "fuson"\nhint: did you mean "fusion"'),
        ({"debug": 7}, "debug = 7 is not an integer in 0..6"),
        ({"threads": 0}, "threads = 0"),
        ({"threads": True}, "threads = True"),
        ({"threads": "--5"}, "threads = '--5' is not an integer"),
        ({"budget": "²"}, "budget = '²' is not an integer"),
        ({"tile_sizes": (0,)}, "tile_sizes"),
        ({"tile_sizes": ("4",)}, "tile_sizes"),
        ({"tile_sizes": (1 << 62, 3)}, "tile_sizes"),
        ({"scheduler": "best"}, "one of ilp, isl, written"),
        ({"costs": ("speed",)}, "different names of coefficients, parallelism"),
        ({"costs": ([],)}, "different names of coefficients, parallelism"),
        ({"fusion": "all"}, "one of none, smart, maximal"),
        ({"vectorize": "yes"}, "a bool"),
        ({"dynamic": 3}, "names of sizes"),
        ({"target": 3}, "a Target"),
    ],
)
def test_faults_are_refused(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(PolymlError, match=message):
        Options.make(**keywords)


def test_fault_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYML_NUM_THREADS", "many")
    with pytest.raises(PolymlError, match="POLYML_NUM_THREADS = 'many' is not an integer"):
        Options.make()
    with pytest.raises(PolymlError, match="option threads = 0 is not"):
        Options.make(threads=0)


def test_stages_are_timed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with overridden(debug=1), debug.compilation("f") as record, debug.stage("schedule"), debug.stage("isl"):
        pass
    assert [(row.name, row.depth) for row in record.times] == [("isl", 2), ("schedule", 1), ("total", 0)]
    assert record.seconds("schedule") >= record.seconds("isl") > 0
    printed = capsys.readouterr().err
    assert "polyml: f:   schedule" in printed
    assert "schedule" in str(record)


def test_reports_are_made_only_for_a_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def never() -> str:
        raise AssertionError("nobody reads this")

    debug.report("loops", never, level=4)
    with overridden(debug=4):
        debug.report("loops", lambda: "for i", level=4)
        debug.report("ilp", never, level=6)
    assert "---- loops ----\nfor i" in capsys.readouterr().err
    with overridden(dump=tmp_path / "dumps"), debug.compilation("g"):
        debug.report("graph", "A", level=3)
        debug.report("llvm", "B", level=4, suffix="ll")
    first, second = sorted((tmp_path / "dumps").iterdir())
    assert first.name.endswith("-g-graph.txt")
    assert second.name.endswith("-g-llvm.ll")
    assert second.read_text() == "B\n"
    assert capsys.readouterr().err == ""


def test_a_dump_without_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for place, why in ((file, "File exists"), (file / "below", "Not a directory")):
        message = f"nothing can be dumped into {place}: {why}\nhint: name a folder"
        with overridden(dump=place), pytest.raises(PolymlError, match=re.escape(message)):
            debug.report("graph", "A", level=3)
