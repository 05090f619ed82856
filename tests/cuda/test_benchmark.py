"""The GPU benchmark's programs, small, on the emulator; and what it says without a GPU."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import benchmarks.cuda as script
import polyml
from benchmarks.cuda import line, main, summary
from benchmarks.cuda_cases import CASES, Case, contractions
from polyml.codegen.cuda.limits import require_fits
from polyml.compiler.driver import lower_program
from polyml.compiler.gpu import cuda_regions
from polyml.gpu_core import Limits
from polyml.target import Target
from tests.cuda.batch import compile_batch, needs_gxx
from tests.cuda.emulator.device import EmulatedDevice

SMALL = {
    "copy": ((300,),), "sum": ((3000,),), "matmul 4096": ((40, 30), (30, 50)), "matmul 1000 x 3000 x 517": ((33, 31), (31, 17)),
    "matmul 4096, any sizes": ((40, 30), (30, 50)), "power, 4 steps": ((21, 21),),
    "bias, gelu, residual": ((9, 40), (40,), (9, 40)), "softmax": ((5, 300),), "layer norm": ((5, 300), (300,), (300,)),
    "attention": ((1, 2, 20, 8),) * 3, "convolution 3 x 3": ((2, 3, 12, 13), (4, 3, 3, 3)), "blur 5 x 5": ((30, 40), (5, 5)),
}  # fmt: skip


def small_cases() -> list[Case]:
    return [*(replace(case, shapes=SMALL[case.name]) for case in CASES), *small_contractions()]


def small_contractions() -> list[Case]:
    """Those of the table with extents of a few elements."""
    found = []
    for case in contractions():
        terms = case.torch.split("'")[1].partition("->")[0].split(",")
        found.append(replace(case, shapes=tuple(tuple(2 + ord(letter) % 5 for letter in term) for term in terms)))
    return found


@needs_gxx
def test_its_programs_are_right() -> None:
    rng = np.random.default_rng(0)
    cases = [*small_cases()[: len(CASES)], *small_contractions()[::3]]
    arguments = [list(case.arguments(rng)) for case in cases]
    batch = compile_batch([(case.text, given) for case, given in zip(cases, arguments, strict=True)])
    for case, given, kernel in zip(cases, arguments, batch.kernels, strict=True):
        exact = case.numpy(*(a.astype(np.float64) for a in given))
        exact = np.asarray(exact)
        results = np.empty(exact.shape, np.float32)
        with kernel.resident(given, [results], {}) as run:
            run()
            run()
            run.fetch()
        np.testing.assert_allclose(results, exact, rtol=1e-3, atol=1e-5, err_msg=case.name)
    assert batch.device.live == {}


@pytest.mark.slow
def test_torchs_words_are_the_same_functions() -> None:
    """As the benchmark evaluates them, on the CPU."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for case in small_cases():
        given = [a.astype(np.float64) for a in case.arguments(rng)]
        names = ", ".join("xyz"[: len(given)])
        function = eval(f"lambda {names}: {case.torch}", {"torch": torch, "functools": functools})
        found = function(*map(torch.from_numpy, given)).numpy()
        np.testing.assert_allclose(found, case.numpy(*given), rtol=1e-4, atol=1e-5, err_msg=case.name)


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benchmarks.cuda.missing_parts", lambda: (("no CUDA compiler (nvcc)", "install it"),))
    assert main([]) == 1
    assert capsys.readouterr().out == "no CUDA compiler (nvcc)\n  -> install it\n"


def row_of(case: str, contender: str, seconds: float = 1e-3, error: float = 1e-6) -> dict[str, object]:
    return {
        "case": case, "contender": contender, "seconds": seconds, "flops": 2e9, "bytes": 3e9, "error": error, "family": "",
        "compile_seconds": "",
    }  # fmt: skip


@pytest.fixture
def a_device(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if there were one."""
    monkeypatch.setattr(script, "missing_parts", tuple)
    monkeypatch.setattr(script, "device_names", lambda: ("a GPU (sm_90)",))
    monkeypatch.setattr(script, "rivals", list)
    monkeypatch.setattr(script, "first_calls", lambda: "0.10 s, from the disk cache 9 ms")
    monkeypatch.setattr(script, "alive", lambda: True)
    monkeypatch.setattr(script, "contractions", lambda: iter(()))
    return monkeypatch


def test_a_case_that_fails_does_not_stop_the_others(
    a_device: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measure(case: Case) -> list[dict[str, object]]:
        if case.name == "softmax":
            raise MemoryError("the device has no 5 bytes")
        return [row_of(case.name, "polyml"), row_of(case.name, "torch", error=1.0)]

    a_device.setattr(script, "measure", measure)
    assert main(["--csv", str(tmp_path / "table.csv")]) == 1
    said = capsys.readouterr().out
    assert "softmax                     FAILS: MemoryError: the device has no 5 bytes" in said
    assert said.endswith("from the disk cache 9 ms\nfailed: softmax\n")
    with (tmp_path / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [r["case"] for r in rows if r["contender"] == "torch"] == [c.name for c in CASES if c.name != "softmax"]
    a_device.setattr(
        script, "measure", lambda case: [row_of(case.name, "polyml"), row_of(case.name, "torch", error=1.0)]
    )
    assert main([]) == 0, "another library's error is not ours"
    assert "WRONG" in capsys.readouterr().out
    a_device.setattr(script, "measure", lambda case: [row_of(case.name, "polyml", error=math.nan)])
    assert main([]) == 1


def test_time_that_runs_out(a_device: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    a_device.setattr(script, "measure", lambda case: [row_of(case.name, "polyml")])
    assert main(["--seconds", "-1"]) == 1
    assert f"out of time for: {', '.join(case.name for case in CASES)}" in capsys.readouterr().out


def test_a_lost_context_is_left_behind(a_device: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """After an illegal access nothing runs in the process."""

    def measure(case: Case) -> list[dict[str, object]]:
        assert case.name in ("copy", "sum"), "the process goes on"
        if case.name == "sum":
            raise RuntimeError("an illegal memory access was encountered")
        return [row_of(case.name, "polyml")]

    commands: list[list[str]] = []
    a_device.setattr(script, "measure", measure)
    a_device.setattr(script, "alive", lambda: False)
    a_device.setattr(script.subprocess, "run", lambda command, **options: commands.append(command))
    assert main([]) == 1
    ((*_, after, name, _, seconds),) = commands
    assert (after, name) == ("--after", "sum")
    assert 0 < float(seconds) <= 420
    assert "context is lost with sum" in capsys.readouterr().out
    a_device.setattr(script, "measure", lambda case: [row_of(case.name, "polyml")])
    assert main(["--after", "sum"]) == 0
    shown = capsys.readouterr().out
    assert "\ncopy " not in shown
    assert "\nmatmul 4096 " in shown


@needs_gxx
def test_contenders_that_fail_are_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One that raises, one that is right, and one that cannot begin; polyml's row is there in any case."""
    case = replace(CASES[0], shapes=((300,),))

    def bad() -> object:
        raise RuntimeError("no kernel image")

    def others(case: Case, sets: Sequence[tuple[np.ndarray, ...]]) -> Iterator[tuple[str, list[Callable[[], object]]]]:
        yield "bad", [bad]
        yield "good", [lambda: SimpleNamespace(get=lambda: sets[0][0])]
        raise RuntimeError("CUDA out of memory")

    device = EmulatedDevice()
    monkeypatch.setattr(script, "the_device", lambda: device)
    monkeypatch.setattr("polyml.runtime.cuda.pycuda_device.the_device", lambda: device)
    monkeypatch.setattr(script, "others", others)
    monkeypatch.setattr(script, "in_turns", lambda device, contenders: dict.fromkeys(contenders, 1.0))
    rows = script.measure(case)
    assert [(row["contender"], row["error"]) for row in rows] == [("polyml", 0.0), ("good", 0.0)]
    said = capsys.readouterr().out
    assert said == "copy: bad fails: no kernel image\ncopy: the others fail: CUDA out of memory\n"


def test_its_contractions_are_those_of_the_file() -> None:
    found = list(contractions())
    assert len(found) >= 24
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(tuple(min(n, 3) for n in shape)) for shape in found[0].shapes)
    assert found[0].numpy(x, y).ndim == 3


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_its_cases_are_mapped_at_their_sizes(every: int) -> None:
    """Whatever takes one thread, or more than a block has, would only show on a GPU."""
    for case in [*CASES, *contractions()][::every]:
        program = polyml.einsum(case.text, target=Target("cuda-sm_90"), dynamic=case.dynamic or "auto")
        given = [np.empty(shape, np.float32) for shape in case.shapes]
        stages = lower_program(program.program, program.key_of(*given), program.options)
        kernels = [kernel for region in cuda_regions(stages) for kernel in region.kernels]
        threads = {kernel.name: kernel.threads for kernel in kernels}
        assert all(math.prod(of) >= 64 for of in threads.values()), f"{case.name}: {threads}"
        require_fits(kernels, Limits(), where="a GPU")


def test_its_summary() -> None:
    def row(case: str, contender: str, seconds: float, family: str = "") -> dict[str, object]:
        return {
            "case": case,
            "contender": contender,
            "seconds": seconds,
            "flops": 2e9,
            "bytes": 3e9,
            "error": 1e-6,
            "family": family,
        }

    rows = [
        row("copy", "polyml", 1e-3), row("copy", "torch", 2e-3), row("softmax", "polyml", 1.25e-3, "copy bandwidth"),
        row("a", "polyml", 1e-3, "torch.einsum"), row("a", "torch", 4e-3, "torch.einsum"),
        row("b", "polyml", 1e-3, "torch.einsum"), row("b", "torch", 1e-3, "torch.einsum"),
    ]  # fmt: skip
    assert list(summary(rows)) == [
        "softmax: 80 % of the copy bandwidth (3000 GB/s)", "copy: 2.00x torch",
        "contractions: 2.00x torch.einsum (geometric mean of 2; worst 1.00)",
    ]  # fmt: skip
    assert line(rows[0]).split() == ["copy", "polyml", "1.000", "2.00", "3000", "1.0e-06"]
