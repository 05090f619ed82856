"""What an earlier process has lowered for a GPU is read from the disk cache."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polyml
import polyml.compiler.driver
import polyml.runtime.cuda.pycuda_device as cuda
from polyml.runtime.cuda.cached import CompiledCuda
from tests.cuda.batch import needs_gxx
from tests.cuda.emulator.device import EmulatedDevice

TEXT = (
    'def f(x: f32["N M"], k: int):\n    m[i] = max[j](x[i, j])\n    y[i, j] = exp(x[i, j] - m[i]) + k\n    return y\n'
)
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@needs_gxx
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_second_process_lowers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    monkeypatch.setenv("POLYML_CACHE", str(tmp_path / "cache"))
    device = EmulatedDevice()
    monkeypatch.setattr(cuda, "the_device", lambda: device)
    exact = np.exp(X - X.max(1, keepdims=True)) + 2
    np.testing.assert_allclose(polyml.einsum(TEXT, target="cuda", dynamic=dynamic)(X, 2), exact, rtol=1e-6)
    lowered: list[object] = []
    lower = polyml.compiler.driver.lower_program
    monkeypatch.setattr(
        polyml.compiler.driver, "lower_program", lambda *given: (lowered.append(given), lower(*given))[1]
    )
    again = polyml.einsum(TEXT, target="cuda", dynamic=dynamic)
    np.testing.assert_allclose(again(X, 2), exact, rtol=1e-6)
    np.testing.assert_allclose(again(X, 3), exact + 1, rtol=1e-6)
    assert lowered == []
    files = list((tmp_path / "cache").glob("*.kernel"))
    polyml.einsum(TEXT, target="cuda", dynamic=dynamic, atomics=True)(X, 2)
    assert len(lowered) == 1, "another option, another kernel"
    for file in files:
        file.write_bytes(file.read_bytes()[:-3])
    with pytest.warns(RuntimeWarning, match="damaged"):
        np.testing.assert_allclose(polyml.einsum(TEXT, target="cuda", dynamic=dynamic)(X, 2), exact, rtol=1e-6)
    assert len(lowered) == 2


ALONE = """
import sys
import numpy as np
import polyml
import polyml.runtime.cuda.pycuda_device as cuda
from polyml.gpu_core import Limits

class Nothing:  # a device that does nothing
    limits = Limits()

    def __getattr__(self, name):
        return lambda *given: self if name == "queue" else 1

cuda.the_device = Nothing
polyml.einsum('def f(x: f32["N"]):\\n    y[n] = exp(x[n]) + 1\\n    return y\\n', target="cuda")(np.ones(9, np.float32))
print(*sorted({"llvmlite", "islpy", "highspy"} & sys.modules.keys()))
"""


def test_the_second_process_needs_no_compiler(tmp_path: Path) -> None:
    """Not even the import of one: isl and a solver have done their work, and LLVM has none."""
    environment = os.environ | {"POLYML_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ALONE]
    first, again = (subprocess.check_output(command, env=environment, text=True).split() for _ in range(2))
    assert "islpy" in first
    assert again == []


def test_nothing_else_is_unpickled() -> None:
    for foreign in (Path("/"), np.float64(1), print):
        with pytest.raises(ValueError, match="not a compiled kernel"):
            CompiledCuda.from_bytes(pickle.dumps(foreign))
    with pytest.raises(ValueError, match="not a compiled kernel"):
        CompiledCuda.from_bytes(b"nonsense")


def test_what_our_modules_import_is_not_unpickled() -> None:
    module, name = b"polyml.runtime.cuda.compile", b"subprocess.run"
    called = b"\x80\x04\x8c" + bytes([len(module)]) + module + b"\x8c" + bytes([len(name)]) + name + b"\x93)R."
    with pytest.raises(ValueError, match="has no place"):
        CompiledCuda.from_bytes(called)
