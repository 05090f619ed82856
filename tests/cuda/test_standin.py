"""pycuda itself, end to end, on a stand-in for CUDA's driver and compiler: copies, launches, streams, memory that runs out, ten thousand calls.

It needs pycuda, which is built without a GPU: from its source with `CUDA_ENABLE_CURAND = False` in siteconf.py, against any libcuda.so that has its functions (such as
the one made here).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.batch import needs_gxx

HERE = Path(__file__).parent
PACKAGE = importlib.util.find_spec("pycuda")

pytestmark = [needs_gxx, pytest.mark.skipif(PACKAGE is None, reason="pycuda is not installed")]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libcuda.so.1 and nvcc. What pycuda wants beyond the functions that are there says that it is not supported."""
    folder = tmp_path_factory.mktemp("standin")
    source = (HERE / "standin" / "driver.cpp").read_text()
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    (library,) = Path(PACKAGE.origin).parent.glob("_driver*.so")
    listed = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    wanted = set(re.findall(r"\bcu[A-Z]\w*", listed.stdout)) - set(re.findall(r"^API (\w+)\(", source, re.MULTILINE))
    missing = "\n".join(f"API {name}() {{ return 801; }}" for name in sorted(wanted))
    (folder / "driver.cpp").write_text(f"{source}\n{missing}\n")
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
    made = folder / "libcuda.so.1"
    done = subprocess.run(
        [*command, "-o", made, folder / "driver.cpp", "-ldl"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]
    script = folder / "nvcc"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "standin" / "nvcc.py"}" "$@"\n')
    script.chmod(0o755)
    assert shutil.which("nvcc", path=str(folder))
    return folder


def run(driver: Path, check: str, **variables: str) -> None:
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(driver), "PATH": f"{driver}:{os.environ['PATH']}", "POLYML_CUDA_COMPILER": "nvcc",
        "POLYML_CACHE": str(driver / "cache"), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **variables,
    }  # fmt: skip
    command = [sys.executable, "-W", "error", "-m", "tests.cuda.standin.checks", check, *variables.values()]
    done = subprocess.run(
        command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert not done.stderr, done.stderr


@pytest.mark.parametrize("order", ["late", "early"])
@pytest.mark.parametrize("check", ["programs", "on_device", "streams", "staging"])
def test_work_that_is_done_late_or_at_once(driver: Path, check: str, order: str) -> None:
    run(driver, check, STANDIN_ORDER=order)


@pytest.mark.parametrize("check", ["streams_without_order", "staging_without_waiting"])
def test_planted_bugs_are_caught(driver: Path, check: str) -> None:
    run(driver, check)


@pytest.mark.parametrize("check", ["routes", "leaks", "benchmark"])
def test_what_stays(driver: Path, check: str) -> None:
    run(driver, check)


def test_memory_that_runs_out(driver: Path) -> None:
    run(driver, "memory", STANDIN_BYTES="100000")
