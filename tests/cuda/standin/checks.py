"""What pycuda does on the stand-in driver, each check in a process of its own: `python -m tests.cuda.standin.checks NAME`. They raise where something is wrong."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import polyml
import polyml.runtime.cuda.pycuda_device as cuda
import polyml.runtime.cuda.staging as cuda_staging

DRIVER = ctypes.CDLL("libcuda.so.1")
SCALE = 'def scale(x: f32["N"], s: f32):\n    y[n] = s * x[n]\n    return y\n'
MATMUL = 'def matmul(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
UPDATE = 'def update(x: f32["N M"], y: f32["N M"]):\n    y[i, j] += 2 * x[i, j]\n'
STEPS = """
def steps(x: f64["N"]):
    y: f64["N"]
    y[i] = x[i]
    for t in range(4):
        z[i] = y[i] + y[N - 1 - i]
        y[i] = 0.5 * z[i]
    return y
"""
TOTAL = 'def total(x: f64["N"]):\n    s = x[n]\n    return s\n'


def live() -> dict[str, int]:
    """What exists in the driver."""
    gc.collect()
    names = ("memory", "pinned", "events", "streams", "modules", "contexts")
    return {name: DRIVER.standin_live(name.encode()) for name in names}


class Theirs:
    """Another library's array: its memory, and the stream that it works on."""

    def __init__(self, array: Any, stream: int) -> None:
        self.array, self.stream = array, stream

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {**self.array.__cuda_array_interface__, "stream": self.stream}


def programs() -> None:
    """NumPy in, NumPy out."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((70, 60), dtype=np.float32), rng.standard_normal((60, 50), dtype=np.float32)
    for _ in range(2):
        np.testing.assert_allclose(polyml.einsum(MATMUL, target="cuda")(x, w), x @ w, rtol=1e-4, atol=1e-4)
    update = polyml.einsum(UPDATE, target="cuda")
    a, b = x[::2], np.ones((35, 60), np.float32, order="F")
    update(a, b)
    np.testing.assert_allclose(b, 1 + 2 * a, rtol=1e-6)
    t = rng.standard_normal(37)
    exact = t.copy()
    for _ in range(4):
        exact = 0.5 * (exact + exact[::-1])
    np.testing.assert_allclose(polyml.einsum(STEPS, target="cuda")(t), exact, rtol=1e-12)
    long = rng.standard_normal(500_000)
    np.testing.assert_allclose(polyml.einsum(TOTAL, target="cuda")(long), long.sum(), rtol=1e-10)
    assert DRIVER.standin_live(b"contexts") == 0


def on_device() -> None:
    """pycuda's own arrays, where they are; nothing is waited for."""
    from pycuda import gpuarray

    f = polyml.einsum(SCALE, target="cuda")
    f(np.ones(3, np.float32), 1.0)
    with cuda._Current(cuda.the_device().context):
        x = gpuarray.to_gpu(np.arange(1000, dtype=np.float32))
        y = f(f(x, 2.0), 3.0)
        assert isinstance(y, gpuarray.GPUArray)
        late = DRIVER.standin_live(b"waiting")
        assert late > 0 or "early" in sys.argv, "the call has waited"
        np.testing.assert_array_equal(y.get(), 6 * np.arange(1000, dtype=np.float32))


def in_streams(rounds: int = 20) -> bool:
    """Work of another library's stream ahead of a call and behind it. *Returns* whether all results are right."""
    import pycuda.driver as driver

    f = polyml.einsum(SCALE, target="cuda")
    f(np.ones(3, np.float32), 1.0)
    right = True
    with cuda._Current(cuda.the_device().context):
        from pycuda import gpuarray

        flags = 1  # such as torch's side streams have: they are not in order with the default one
        stream, other = driver.Stream(flags), driver.Stream(flags)
        x, y = gpuarray.empty(1000, np.float32), gpuarray.empty(1000, np.float32)
        source, target = (driver.pagelocked_empty(1000, np.float32) for _ in range(2))
        for k in range(rounds):
            source[:] = np.arange(1000) + k
            target[:] = 0
            driver.memcpy_htod_async(x.gpudata, source, stream)
            f(Theirs(x, stream.handle), 2.0, out=Theirs(y, (other if k % 2 else stream).handle))
            back = other if k % 2 else stream
            driver.memcpy_dtoh_async(target, y.gpudata, back)
            back.synchronize()
            right &= np.array_equal(target, 2 * source)
    return right


def streams() -> None:
    assert in_streams()


def streams_without_order() -> None:
    """Planted bugs: one side of the order is missing."""
    whole = cuda.behind
    ours = {stream.handle for _, stream in cuda.the_device().streams.values()}
    assert not ours
    for side in ("ahead", "behind"):

        def half(later: int, earlier: int, side: str = side) -> None:
            mine = {stream.handle for _, stream in cuda.the_device().streams.values()}
            if (later in mine) != (side == "ahead"):
                whole(later, earlier)

        cuda.behind = half
        assert not in_streams(), f"nobody sees that our work is not {side}"


def staged() -> bool:
    """Copies by way of page-locked buffers, several per array and an odd rest; two arrays right after each other. *Returns* whether all is right."""
    cuda_staging.Routes.staged = lambda self, direction, size: (size >= 1000, None)  # type: ignore[method-assign]
    cuda_staging.CHUNK = 1 << 14
    rng = np.random.default_rng(0)
    add = polyml.einsum('def add(x: f32["N"], y: f32["N"]):\n    z[n] = x[n] + 2 * y[n]\n    return z\n', target="cuda")
    right = True
    for n in (250, 5000, 30_001):
        x, y = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
        right &= bool(np.array_equal(add(x, y), x + 2 * y))
    return right


def staging() -> None:
    assert staged()
    assert live()["pinned"] == 2


def staging_without_waiting() -> None:
    """A planted bug: buffers are filled again while copies from them are under way."""
    import pycuda.driver as driver

    class Never:
        def record(self, stream: object) -> None: ...

        def synchronize(self) -> None: ...

    device = cuda.the_device()
    with cuda._Current(device.context):
        device.staging.buffers = tuple((driver.pagelocked_empty(1 << 14, np.uint8), Never()) for _ in range(2))
    assert not staged()


def routes() -> None:
    """Both ways are tried, and one is taken then."""
    f = polyml.einsum(SCALE, target="cuda")
    x = np.ones(100_000, np.float32)
    for _ in range(8):
        assert np.array_equal(f(x, 2.0), 2 * x)
    seconds = cuda.the_device().staging.routes.seconds
    assert {direction for direction, _ in seconds} == {"in", "out"}
    assert all(len(plain) == len(through) == cuda_staging.SAMPLES for plain, through in seconds.values())


def leaks() -> None:
    """Ten thousand calls, with NumPy's arrays and with those of another library's stream."""
    import pycuda.driver as driver
    from pycuda import gpuarray

    f = polyml.einsum(SCALE, target="cuda")
    host = np.ones(40, np.float32)
    with cuda._Current(cuda.the_device().context):
        stream = driver.Stream(1)
        x, y = gpuarray.to_gpu(host), gpuarray.empty(40, np.float32)
        there, out = Theirs(x, stream.handle), Theirs(y, stream.handle)

        def call() -> None:
            f(host, 2.0)
            f(there, 2.0, out=out)

        for _ in range(200):
            call()
        stream.synchronize()
        before, size = live(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(5000):
            call()
            if number % 100 == 0:
                stream.synchronize()
        stream.synchronize()
        assert live() == before, (before, live())
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size
        assert grown < 4096, f"{grown} KiB more after ten thousand calls"


def memory() -> None:
    """Out of memory (STANDIN_BYTES=100000) says how much is asked for and there; what was kept goes back first, and later calls run."""
    f = polyml.einsum(SCALE, target="cuda")
    f(np.ones(9000, np.float32), 2.0)
    for _ in range(3):
        try:
            f(np.ones(15_000, np.float32), 2.0)
        except MemoryError as fault:
            said = str(fault)
        else:
            raise AssertionError("120,000 bytes found room in 100,000")
        assert said.startswith("the device has no 60000 bytes: "), said
        assert said.endswith("of 100000 bytes are free"), said
    assert np.array_equal(f(np.ones(10_000, np.float32), 2.0), np.full(10_000, 2, np.float32))
    assert live()["contexts"] == 0


def benchmark() -> None:
    """benchmarks/cuda.py as a whole, on small cases; the times mean nothing here."""
    import contextlib
    import io
    from dataclasses import replace

    import benchmarks.cuda as script
    from tests.cuda.test_benchmark import SMALL, small_contractions

    script.FLUSHED, script.L2, script.ROUNDS = 1 << 16, 1 << 12, 4
    script.CASES = tuple(replace(case, shapes=SMALL[case.name]) for case in script.CASES)
    script.contractions = lambda: iter(small_contractions()[::5])
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = script.main([])
    assert status == 0, said.getvalue()
    assert "first call of a small program: 0" in said.getvalue() or " s, from the disk cache" in said.getvalue()
    assert live()["memory"] < 200, "what a case needs goes back"


CHECKS: tuple[Callable[[], None], ...] = (
    programs, on_device, streams, streams_without_order, staging, staging_without_waiting, routes, leaks, memory, benchmark
)  # fmt: skip

if __name__ == "__main__":
    {check.__name__: check for check in CHECKS}[sys.argv[1]]()
