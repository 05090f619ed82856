"""`python -m polyml`: doctor and explain. The demo has tests of its own."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import polyml
from polyml import doctor
from polyml.__main__ import main
from polyml.doctor import Finding, examine, report_text
from polyml.errors import DeviceUnavailableError, PolymlError
from polyml.explain import LONGEST, load_program, sample_arguments
from polyml.runtime.balance import fma_peak, read_bandwidth

PROGRAMS = '''
import polyml as pm
import neighbour


@pm.einsum
def scale(x: pm.f32["N 2*N+K"], K: int, s: pm.f32):
    y[i, j] = s * x[i, j]
    return y


def plain(x: pm.f32["N"]):
    """Not decorated."""
    y[i] = x[i] + x[i]
    return y


def wrong(x: pm.f32["N"]):
    y[i] = x[i] - x[i + 1]
    return y


THREE = 3
assert __name__ != "__main__"
'''


@pytest.fixture
def programs(tmp_path: Path) -> str:
    (tmp_path / "neighbour.py").write_text("here = True\n")
    (tmp_path / "programs.py").write_text(PROGRAMS)
    return str(tmp_path / "programs.py")


def test_explain_shows_every_stage(programs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{programs}:scale", "--shapes", "N=5", "K=3"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("scale(x: f32[5, 13], K: 3, s: 1.0)")
    headings = [line.split()[1] for line in shown.splitlines() if line.startswith("-- ")]
    assert headings == ["time", "graph", "plan", "domains", "accesses", "dependences", "schedule", "loops", "llvm", "c"]
    for stage in ("scop", "schedule", "llvm"):
        assert f"  {stage} " in shown
    assert str(Path(programs).parent) not in sys.path


def test_explain_shows_one_stage_in_full(programs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{programs}:plain", "--view", "loops"]) == 0
    shown = capsys.readouterr().out
    assert "-- loops --" in shown
    assert "-- graph --" not in shown
    assert main(["explain", f"{programs}:plain", "--view", "asm"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) > 20
    assert "more lines" not in shown
    assert LONGEST >= 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "FILE:nothing"], "has no function nothing\nhint: einsum programs in it: scale"),
        (["explain", "FILE:THREE"], "has no function THREE"),
        (["explain", "nowhere.py:f"], "nowhere.py:f is not FILE:FUNCTION"),
        (["explain", "FILE"], "is not FILE:FUNCTION"),
        (["explain", "FILE:plain", "--shapes", "M=3"], "plain has no size M\nhint: its sizes: N"),
        (["explain", "FILE:plain", "--shapes", "N=x"], "--shapes takes SIZE=NUMBER"),
        (["explain", "FILE:plain", "--view", "loop"], 'there is no view "loop"'),
        (["explain", "FILE:wrong"], "programs.py:19"),
    ],
)
def test_faults_of_explain(
    programs: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([a.replace("FILE", programs) for a in arguments]) == 1
    assert message in capsys.readouterr().err


def test_fault_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["dctor"])
    assert left.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_sample_arguments_fit(programs: str) -> None:
    program = load_program(f"{programs}:scale")
    x, k, s = sample_arguments(program.program, {"N": 4})
    assert isinstance(x, np.ndarray)
    assert isinstance(k, int)
    assert x.shape == (4, 8 + k)
    assert type(s) is float
    assert (program(x, k, s) == x).all()
    with pytest.raises(PolymlError, match="has no size Q"):
        sample_arguments(program.program, {"Q": 4})


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for subject in (
        "python",
        "numpy",
        "islpy",
        "llvmlite",
        "LLVM",
        "CPU",
        "caches",
        "vectors",
        "threads",
        "thread runtime",
        "round trip",
        "CUDA driver",
        "nvcc",
        "pycuda",
    ):
        assert f" {subject} " in shown
    assert shown.endswith("polyml works here.\n")


def test_doctor_names_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = report_text([Finding("a", "1"), Finding("b", "gone", "get b"), Finding("c", "gone", "get c", needed=False)])
    assert lines.splitlines() == [
        "ok      a               1",
        "MISSING b               gone",
        "                        -> get b",
        "absent  c               gone",
        "                        -> get c",
        "polyml cannot work here: b",
    ]
    monkeypatch.setenv("POLYML_NUM_THREADS", "lots")
    monkeypatch.setenv("POLYML_DEBUGS", "1")
    broken = {f.subject: f for f in examine()}
    assert not broken["threads"].good
    assert broken["POLYML_DEBUGS"].remedy == "did you mean POLYML_DEBUG?"
    assert "POLYML_NUM_THREADS" in (broken["threads"].remedy or "")


def test_doctor_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Driver, compilers, pycuda and devices: what is there, what is not, and what to do then."""

    def lines() -> dict[str, Finding]:
        return {f.subject: f for f in doctor._cuda()}

    def nothing(*arguments: object) -> object:
        raise OSError("no such library")

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    def no_device() -> tuple[str, ...]:
        raise DeviceUnavailableError("there is no CUDA device", hint="look at CUDA_VISIBLE_DEVICES")

    monkeypatch.setattr(doctor.ctypes, "CDLL", nothing)
    monkeypatch.setattr(doctor, "find_nvcc", lambda: None)
    monkeypatch.setattr(doctor, "find_nvrtc", lambda: None)
    monkeypatch.setattr(doctor, "version", absent)
    found = lines()
    assert list(found) == ["CUDA driver", "CUDA compiler", "pycuda"]
    assert not any(f.good or f.needed for f in found.values())
    assert "nvidia-cuda-nvrtc" in (found["CUDA compiler"].remedy or "")
    assert "[cuda]" in (found["pycuda"].remedy or "")

    monkeypatch.setattr(doctor.ctypes, "CDLL", lambda name: object())
    monkeypatch.setattr(doctor, "find_nvcc", lambda: "/opt/nvcc")
    said = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"
    done = subprocess.CompletedProcess([], 0, stdout=said, stderr="")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *given, **options: done)
    monkeypatch.setattr(doctor, "find_nvrtc", lambda: SimpleNamespace(version="13.0"))
    monkeypatch.setattr(doctor, "version", lambda name: "2026.1")
    monkeypatch.setattr(doctor, "device_names", no_device)
    found = lines()
    assert found["nvcc"].text == "Cuda compilation tools, release 13.0, V13.0.88"
    assert found["NVRTC"].text == "13.0"
    assert found["pycuda"].text == "2026.1"
    assert (found["CUDA devices"].text, found["CUDA devices"].remedy) == (
        "there is no CUDA device",
        "look at CUDA_VISIBLE_DEVICES",
    )
    assert not found["CUDA devices"].needed
    monkeypatch.setattr(doctor, "device_names", lambda: ("NVIDIA H100 (sm_90)", "NVIDIA A100 (sm_80)"))
    assert lines()["CUDA devices"].text == "NVIDIA H100 (sm_90), NVIDIA A100 (sm_80)"
    assert all(f.good for f in lines().values())


def test_a_reader_may_leave_early(programs: str) -> None:
    command = f"'{sys.executable}' -m polyml explain '{programs}:scale' | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ)
    )
    assert done.stderr == ""
    assert done.stdout.startswith("scale(")


def test_measured_balance_is_plausible() -> None:
    target = polyml.Target.host()
    single = fma_peak()
    assert fma_peak() == single
    assert all(1e8 < peak < 1e13 for peak in (single, fma_peak(polyml.f64)))
    assert 1e7 < read_bandwidth(1) < 1e13
    assert target.cores >= 1
