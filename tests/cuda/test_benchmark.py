"""The GPU benchmark's programs, small, on the emulator; and what it says without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.cuda import CASES, main
from tests.cuda.batch import compile_batch, needs_gxx

SMALL = {"copy": ((300,),), "matmul 4096": ((40, 30), (30, 50)), "bias, gelu, residual": ((9, 40), (40,), (9, 40)), "softmax": ((5, 300),),
         "layer norm": ((5, 300), (300,), (300,)), "attention": ((1, 2, 20, 8),) * 3}  # fmt: skip


@needs_gxx
def test_its_programs_are_right() -> None:
    rng = np.random.default_rng(0)
    arguments = [[rng.standard_normal(s, dtype=np.float32) for s in SMALL[case.name]] for case in CASES]
    batch = compile_batch([(case.text, given) for case, given in zip(CASES, arguments, strict=True)])
    for case, given, kernel in zip(CASES, arguments, batch.kernels, strict=True):
        exact = case.numpy(*(a.astype(np.float64) for a in given))
        results = np.empty(exact.shape, np.float32)
        with kernel.resident(given, [results], {}) as run:
            run()
            run()
            run.fetch()
        np.testing.assert_allclose(results, exact, rtol=1e-3, atol=1e-5, err_msg=case.name)
    assert batch.device.live == {}


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benchmarks.cuda.missing_parts", lambda: (("no CUDA compiler (nvcc)", "install it"),))
    assert main([]) == 1
    assert capsys.readouterr().out == "no CUDA compiler (nvcc)\n  -> install it\n"
