"""Targets: detected and named."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import polyml
from polyml.errors import PolymlError
from polyml.target import Target, _cache_sizes_sysfs, _host_fields, _usable, available_cores, named_targets
from tests.pairs import pairwise


def test_host_is_plausible_and_stays_the_same() -> None:
    host = Target.host()
    assert host is Target.host()
    assert host == Target("host")
    assert host.runs_here
    assert host.vector_bytes in (16, 32, 64)
    assert 4096 <= host.l1_bytes <= host.l2_bytes
    assert host.cores == available_cores() >= 1


@pytest.mark.parametrize("name", named_targets())
def test_named_targets_say_all_fields(name: str) -> None:
    target = Target(name)
    assert target.name == name
    assert all(getattr(target, field.name) is not None for field in dataclasses.fields(Target))
    assert hash(target) == hash(Target(name))
    assert name in str(target)


def test_lanes() -> None:
    assert Target("x86-64-v3").lanes(4) == 8
    assert Target("x86-64-v4").lanes(8) == 8
    assert Target("aarch64").lanes(32) == 1


def test_fields_can_be_replaced() -> None:
    target = Target("x86-64-v3", cores=1)
    assert target.cores == 1
    assert dataclasses.replace(Target("x86-64-v3"), cores=1) == target
    assert target != Target("x86-64-v3")


MANY_INSTRUCTIONS = """
def f(x: f32["N K"], d: f64["N K"], h: f16["N K"], i: i8["N K"], w: f32["K M"]):
    y[n, m] = exp(x[n, m]) + floor(x[n, K - 1 - m])
    z[n, m] = log(abs(d[n, m])) + i[n, m] * exp(h[n, m])
    b[n] = argmax[m](x[n, m])
    q[n, j] = x[n, k] * w[k, j]
    return y, z, b, q
"""


@pairwise(
    ("name", ["host", *(name for name in named_targets() if not Target(name).is_cuda)]),
    ("vector_bytes", [8, 16, 32, 64, 128]),
)
@pytest.mark.few(2)
def test_vectors_may_be_longer_than_those_of_the_machine(name: str, vector_bytes: int) -> None:
    """No instruction is asked for that a CPU has not: LLVM ends the process then."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 77)), rng.standard_normal((77, 9)).astype(np.float32)
    arguments = (x.astype(np.float32), x, x.astype(np.float16), np.rint(x).astype(np.int8), w)
    target = Target(name, vector_bytes=vector_bytes)
    function = polyml.einsum(MANY_INSTRUCTIONS, target=target, threads=1)
    assert function.lower(*arguments).text("asm")
    if target.runs_here:
        y, z, b, q = function(*arguments)
        single, half = (arguments[k].astype(np.float64) for k in (0, 2))
        np.testing.assert_allclose(y, np.exp(single) + np.floor(single[:, ::-1]), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(z, np.log(np.abs(x)) + np.rint(x) * np.exp(half), rtol=1e-2)
        np.testing.assert_array_equal(b, single.argmax(1))
        np.testing.assert_allclose(q, single @ w, rtol=1e-5, atol=1e-5)


def test_foreign_target_does_not_run_here() -> None:
    foreign = "aarch64" if Target.host().architecture == "x86_64" else "x86-64-v2"
    assert not Target(foreign).runs_here


def test_unknown_name_and_field_are_refused() -> None:
    with pytest.raises(PolymlError, match='unknown target "x86-64-v9"'):
        Target("x86-64-v9")
    with pytest.raises(PolymlError, match="no field coars"):
        Target("x86-64-v3", coars=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vector_bytes": "wide"}, "vector_bytes = 'wide' is not a power of two"),
        ({"vector_bytes": 48}, "a power of two"),
        ({"vector_bytes": 0}, "a power of two, at least 8"),
        ({"line_bytes": 8}, "a power of two, at least 16"),
        ({"l1_bytes": -1}, "l1_bytes = -1 is not an integer of at least 1"),
        ({"l3_bytes": 1.5}, "an integer of at least 0"),
        ({"vector_registers": 2}, "vector_registers = 2 is not an integer of at least 3"),
        ({"cores": 0}, "cores = 0"),
        ({"cores": True}, "cores = True"),
        ({"fma": 1}, "a bool"),
        ({"division": -1.0}, "a number of at least 0"),
        ({"features": None}, "text"),
    ],
)
def test_values_that_fit_no_field_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PolymlError, match=message):
        Target("host", **fields)


@pytest.mark.parametrize("fields", [{"vector_registers": 3}, {"vector_bytes": 8, "split_vectors": True}])
def test_the_least_machines(fields: dict[str, int]) -> None:
    product = polyml.einsum(
        'def f(a: f32["N K"], b: f32["K M"]):\n    c[i, j] = a[i, k] * b[k, j]\n    return c\n',
        target=Target("x86-64-v3", **fields),
    )
    assert product.lower(np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32)).text("llvm")


def test_cache_sizes_of_a_container_without_sysfs(tmp_path: Path) -> None:
    assert _cache_sizes_sysfs(tmp_path / "missing") == {}
    for index, (level, kind, size) in enumerate(
        (("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2M"))
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for file, text in (("level", level), ("type", kind), ("size", size), ("coherency_line_size", "64")):
            (folder / file).write_text(f"{text}\n")
    assert _cache_sizes_sysfs(tmp_path) == {"l1": 48 * 1024, "l2": 2 * 1024 * 1024, "line": 64}


def test_caches_may_be_as_small_as_somebody_says() -> None:
    """Sizes of tiles are at least one, whatever a model divides."""
    tiny = Target("host", l1_bytes=512, l2_bytes=256, l3_bytes=0, cores=1)
    product = 'def f(x: f32["N K"], w: f32["K M"]):\n    y[n, m] = x[n, k] * w[k, m]\n    return y\n'
    x, w = np.ones((32, 2048), np.float32), np.ones((2048, 64), np.float32)
    assert (polyml.einsum(product, target=tiny)(x, w) == 2048).all()
    sweeps = """
def f(u: f64["N M"], T: int):
    for t in range(T):
        for i in range(1, N - 1):
            for j in range(1, M - 1):
                u[i, j] = u[i - 1, j] + u[i, j - 1] - u[i + 1, j] + u[i, j + 1]
    return u
"""
    u = np.arange(30 * 50).reshape(30, 50) % 7.0
    given = (u.copy() for _ in range(2))
    found, plain = (
        polyml.einsum(sweeps, dynamic=True, **o)(next(given), 3) for o in ({"target": tiny}, {"scheduler": "written"})
    )
    assert np.array_equal(found, plain)


def test_features_that_code_is_better_off_without() -> None:
    """AMD's SSE4a, whose instructions have no form for AVX; and half registers where polyml asks for whole ones."""
    assert _usable("+avx2,+sse4a,-fma4", False) == "+avx2,-sse4a,-fma4"
    assert _usable("+avx512f,-sse4a", True) == "+avx512f,-sse4a,-prefer-256-bit"
    assert "+sse4a" not in Target.host().features.split(",")


@pytest.mark.parametrize(
    ("cpu", "near", "along", "sources", "near_l3", "fills", "apart", "assists", "window"),
    [
        ("znver2", True, True, True, True, False, False, False, 224),
        ("znver3", False, True, True, True, False, True, False, 256),
        ("znver4", True, True, True, True, True, False, False, 320),
        ("icelake-server", True, False, False, False, True, False, True, 352),
        ("sapphirerapids", True, False, False, False, True, False, True, 512),
    ],
)
def test_what_cores_are_asked_for_ahead(
    cpu: str,
    near: bool,
    along: bool,
    sources: bool,
    near_l3: bool,
    fills: bool,
    apart: bool,
    assists: bool,
    window: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before Zen 4, AMD's bring what is asked for into L2 into L1, too; Zen 3's stores past the caches wait in buffers of their own; Intel's follow rows that are read side by side; they wait for buffers where tiles ask for what the next block is packed from, and their last cache is far, and what underflows takes microcode; how far cores look ahead."""
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: cpu)
    fields = _host_fields.__wrapped__()
    names = ("asks_near", "asks_along", "asks_sources", "near_l3", "fills_l2", "streams_apart", "assists")
    assert tuple(fields[name] for name in names) == (near, along, sources, near_l3, fills, apart, assists)
    assert fields["window"] == window
