"""The benchmarks' tables: a run over a case of one's own, the columns, the plot, and peers that cannot do a case."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks import contractions, convolutions, fused, held_out
from benchmarks.command_line import FIELDS
from benchmarks.fused_cases import CASES
from benchmarks.held_out_cases import DRAWN
from benchmarks.model_cases import CASES as MODELS
from benchmarks.network_cases import CASES as NETWORKS
from benchmarks.network_cases import Images
from benchmarks.peers import Formulation, first_calls, peers_of
from polyml.demo.measure import interleaved


def test_odd_sizes_are_the_same_again() -> None:
    given = list(contractions.read_cases(contractions.CASES))
    drawn = list(contractions.odd_cases(given, 1))
    assert drawn == list(contractions.odd_cases(given, 1)) != list(contractions.odd_cases(given, 2))
    assert len(drawn) == 96
    assert all(2e7 < case.flops < 4e8 for case in drawn)


def test_a_file_of_contractions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases, table, image = tmp_path / "cases.csv", tmp_path / "table.csv", tmp_path / "plot.png"
    sizes = "a=3;b=4;c=5;d=6"
    cases.write_text(f'name,einsum,sizes_f32,sizes_f64\nmine,"abc,cd->dab",{sizes},{sizes}\n')
    given = f"contractions --cases {cases} --seconds 0.01 --peers numpy,opt_einsum --csv {table} --plot {image}"
    monkeypatch.setattr("sys.argv", given.split())
    assert contractions.main() == 0
    assert "mine" in capsys.readouterr().out
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert tuple(rows[0]) == FIELDS
    assert {(row["dtype"], row["contender"]) for row in rows} == {
        (dtype, name) for dtype in ("float32", "float64") for name in ("polyml", "numpy", "opt_einsum")
    }
    assert all(
        float(row["cold_s"]) > 0 and float(row["times_limit"]) > 0 and float(row["error"]) < 1e-5 for row in rows
    )
    assert image.read_bytes().startswith(b"\x89PNG")


def test_a_convolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases, table = tmp_path / "cases.csv", tmp_path / "table.csv"
    cases.write_text("name,channels,height,width,filters,kernel,stride,padding,groups\nmine,3,9,8,5,3,2,1,1\n")
    monkeypatch.setattr("sys.argv", f"convolutions --cases {cases} --seconds 0.01 --peers nobody --csv {table}".split())
    assert convolutions.main() == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["contender"] for row in rows] == ["polyml", "numpy"]
    assert all(float(row["error"]) < 1e-5 for row in rows)


@pytest.mark.parametrize("kind", DRAWN)
def test_cases_that_are_drawn_at_random(kind: str) -> None:
    cases = [DRAWN[kind](Random(f"5 {number}")) for number in range(3)]
    assert cases == [DRAWN[kind](Random(f"5 {number}")) for number in range(3)]
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        arguments = held_out.arguments_of(case)
        runs = held_out.contenders(case, arguments)
        assert runs["polyml"]() is not None
        if case.numpy:  # compared with float64
            assert held_out.measured(case, 0.0)[1] in runs


def test_peers_that_cannot_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise NotImplementedError("no such operator\nat length")

    runs = {"polyml": lambda: 1, "other": fails}
    assert set(first_calls(runs, iter((1.0, 2.0, 3.0)).__next__)) == {"polyml"} == set(runs)
    assert "other cannot: NotImplementedError: no such operator\n" in capsys.readouterr().out
    with pytest.raises(NotImplementedError):
        first_calls({"polyml": fails}, iter((1.0, 2.0)).__next__)


def test_peers_that_are_wrong_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    case = contractions.Case("mine", "ab,bc->ac", {"a": 2, "b": 2, "c": 2}, "float64")
    exact = np.ones((2, 2))

    def rows(wrong: str) -> list[dict[str, object]]:
        runs = {name: lambda name=name: exact + 1e-7 * (name == wrong) for name in ("polyml", "other")}  # type: ignore[misc]
        return contractions.in_turns(case, runs, exact, threads=1, seconds=0.0, clock=time.perf_counter)

    assert [row["contender"] for row in rows("nobody")] == ["polyml", "other"]
    assert [row["contender"] for row in rows("other")] == ["polyml"]
    assert "other is left out of mine: an error of 1.0e-07\n" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="polyml is wrong"):
        rows("polyml")


def test_whose_turn_is_next_changes() -> None:
    turns: list[str] = []
    times = interleaved({name: lambda name=name: turns.append(name) for name in "abc"}, seconds=0, least=8, most=8)  # type: ignore[misc]
    assert times.keys() == {*"abc"}
    rounds = [tuple(turns[k : k + 3]) for k in range(0, len(turns), 3)]
    assert rounds[0] == ("a", "b", "c")
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds[1:])) > 2


def test_peers_by_name() -> None:
    """opt_einsum is in every installation."""
    x, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    found = peers_of(Formulation(opt_einsum="ij,jk->ik"), (x, y), threads=1)
    assert np.array_equal(found["opt_einsum"](), x @ y)
    assert peers_of(Formulation(opt_einsum="ij,jk->ik"), (x, y), threads=1, wanted=("torch",)) == {}


def test_layers_of_a_network() -> None:
    """Of an image of 12 x 12 with 5 channels: those of all networks, bound and checked against NumPy in float64."""
    made = Images(12, channels=5)
    first = made.convolution("x", 8, 3, most=6)
    small = made.pooling(made.convolution(first, 8, 3, depthwise=True), 3, 2, 1)
    deep = made.convolution(small, 8, 1, most=None, added=small)
    both = made.convolution(made.joined(made.doubled(deep), first, 6), 7, 3, 2)
    case = made.case("small", made.classes(both, 10))
    arguments = case.arguments(np.random.default_rng(0))
    exact = case.numpy(*(a.astype(np.float64) for a in arguments))
    result = fused.contenders(case, arguments, 1, wanted=("nobody",))["polyml"]()
    assert result.shape == exact.shape == (10,)
    assert fused.error_of(result, exact) < 1e-5
    assert case.flops == 2 * 9 * (8 * 5 + 8) * 144 + 2 * 64 * 36 + 2 * 9 * 6 * 16 * 144 + 2 * 9 * 42 * 36


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *MODELS, *NETWORKS], ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore")
def test_all_peers_compute_the_same(case: fused.Case) -> None:
    arguments = case.arguments(np.random.default_rng(0))
    exact = case.numpy(*(a.astype(np.float64) for a in arguments))
    runs = fused.contenders(case, arguments, 1)  # with the constants bound, or closed over
    first_calls(runs, lambda: 0.0)
    for name, run in runs.items():
        assert fused.error_of(run(), exact) < (1e-3 if exact.dtype.kind == "i" else 1e-5), name
