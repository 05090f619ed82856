"""Arrays of other libraries: seen without a copy, and given back as what came in."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.lib import NumpyVersion

import polyml
from polyml.errors import ArgumentError, DTypeError


class Tensor:
    """A library of its own that speaks DLPack and nothing else."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __dlpack__(self, **keywords: Any) -> object:
        return self.data.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def __array_namespace__(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(__name__="tensors", from_dlpack=lambda data: Tensor(np.from_dlpack(data)))


class Producer:
    """Speaks DLPack in one direction only."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __dlpack__(self, **keywords: Any) -> object:
        return self.data.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()


class Elsewhere(Producer):
    def __dlpack__(self, **keywords: Any) -> object:
        raise BufferError("it is on a GPU")


class Arrayish:
    """Only __array__."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
        return np.arange(4, dtype=np.float32)


@dataclass(frozen=True)
class Library:
    """make: an array that shares the memory of a NumPy array. read: the other way. kind: of its arrays."""

    make: Callable[[np.ndarray[Any, Any]], Any]
    read: Callable[[Any], np.ndarray[Any, Any]]
    kind: type


@pytest.fixture(params=["fake", "torch"])
def library(request: pytest.FixtureRequest) -> Library:
    if request.param == "fake":
        if READ_ONLY:
            pytest.skip(READ_ONLY)
        return Library(Tensor, lambda t: t.data, Tensor)
    torch = pytest.importorskip("torch", reason="needs the extra `arrays`")
    return Library(torch.from_numpy, lambda t: t.numpy(), torch.Tensor)


READ_ONLY = "" if NumpyVersion(np.__version__) >= "2.2.0" else "NumPy before 2.2 makes read-only arrays of DLPack's"

AFFINE = """
def affine(x: f32["N K"], w: f32["K M"], s: f32):
    y[n, m] = x[n, k] * w[k, m] * s
    total = y[n, m]
    return y, total
"""
UPDATE = """
def update(p: f32["N"], g: f32["N"]):
    p[n] -= 0.5 * g[n]
    return p
"""


def test_results_come_back_as_that_kind(library: Library) -> None:
    f = polyml.einsum(AFFINE)
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    for _ in range(3):
        y, total = f(library.make(x), library.make(w), 2.0)
        assert type(y) is type(total) is library.kind
        assert np.array_equal(library.read(y), x @ w * 2)
        assert library.read(total).shape == ()
        assert library.read(total) == (x @ w * 2).sum()
    mixed, _ = f(library.make(x), w, 2.0)
    assert type(mixed) is library.kind
    assert len(f.kernels) == 1
    plain, number = f(x, w, 2.0)
    assert type(plain) is np.ndarray
    assert type(number) is np.float32


def test_any_strides_and_views_without_a_copy(library: Library) -> None:
    f = polyml.einsum('def f(x: f32["N K"]):\n    y[n, k] = 2 * x[n, k]\n    return y\n')
    memory = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (memory.T, memory[:, ::2], memory[1:3], memory[:0], memory[:, :0]):
        given = library.make(view)
        y = f(given)
        assert np.array_equal(library.read(y), 2 * view)
        assert f.kernel_for(given) is f.kernel_for(view)
    taken = polyml.runtime.foreign.arrays.viewed(library.make(memory))
    assert isinstance(taken, np.ndarray)
    assert np.shares_memory(taken, memory)


def test_updates_happen_in_the_callers_memory(library: Library) -> None:
    f = polyml.einsum(UPDATE)
    memory, g = np.ones(8, np.float32), np.full(8, 2, np.float32)
    p = library.make(memory)
    for step in (0, -1, -2):
        assert f(p, library.make(g)) is p
        assert memory.tolist() == [step] * 8
    strided = library.make(memory[::2])
    assert f(strided, library.make(g[::2])) is strided
    assert memory.tolist() == [-3, -2] * 4
    mine = np.ones(8, np.float32)
    assert f(mine, library.make(g)) is mine, "NumPy's own array beside another library's"


def test_out(library: Library) -> None:
    f = polyml.einsum('def f(x: f32["N"]):\n    y[n] = x[n] + 1\n    z[n] = x[n] - 1\n    return y, z\n')
    x, y, z = (np.full(5, k, np.float32) for k in range(3))
    places = library.make(y), library.make(z)
    given = f(library.make(x), out=places)
    assert given[0] is places[0]
    assert given[1] is places[1]
    assert (y.tolist(), z.tolist()) == ([1] * 5, [-1] * 5)


def test_numpys_form(library: Library) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for _ in range(2):
        c = polyml.einsum("ij,jk->ik", library.make(a), library.make(b))
        assert type(c) is library.kind
        assert np.array_equal(library.read(c), a @ b)
    view = polyml.einsum("ij->ji", library.make(a))
    assert type(view) is library.kind
    assert np.shares_memory(library.read(view), a)
    out = library.make(np.zeros((2, 4)))
    assert polyml.einsum("ij,jk->ik", library.make(a), library.make(b), out=out) is out
    assert np.array_equal(library.read(out), a @ b)


def test_a_kernel_and_its_views_take_them(library: Library) -> None:
    f = polyml.einsum(UPDATE)
    p, g = library.make(np.ones(3, np.float32)), library.make(np.ones(3, np.float32))
    assert "launch" in f.lower(p, g).text("plan")
    kernel = f.compile(p, g)
    assert kernel(p, g) is p
    assert library.read(p).tolist() == [0.5] * 3


@pytest.mark.skipif(bool(READ_ONLY), reason=READ_ONLY)
def test_a_producer_without_a_consumer_gets_numpy_results() -> None:
    f = polyml.einsum(UPDATE)
    memory = np.ones(3, np.float32)
    p = Producer(memory)
    assert f(p, np.ones(3, np.float32)) is p
    assert memory.tolist() == [0.5] * 3
    y = polyml.einsum("i,i->i", Producer(memory), Producer(memory))
    assert type(y) is np.ndarray


def test_refusals() -> None:
    f = polyml.einsum(UPDATE)
    ones = np.ones(3, np.float32)
    with pytest.raises(ArgumentError, match=r"arrays of Producer and tensors"):
        f(Producer(ones), Tensor(ones))
    with pytest.raises(ArgumentError, match="cannot look into this Elsewhere array"):
        f(Elsewhere(ones), ones)
    with pytest.raises(DTypeError, match="argument p has dtype f64"):
        f(Tensor(np.ones(3)), Tensor(ones))
    frozen = np.ones(3, np.float32)
    frozen.flags.writeable = False
    with pytest.raises((ArgumentError, BufferError), match=r"read-?only"):
        f(Producer(frozen), ones)
    with pytest.raises(ArgumentError, match="updated in place"):
        f(Arrayish(), np.ones(4, np.float32))


def test_what_only_converts_to_numpy() -> None:
    f = polyml.einsum('def f(x: f32["N"]):\n    y[n] = x[n] + 1\n    return y\n')
    assert f(Arrayish()).tolist() == [1, 2, 3, 4]
    assert type(f(Arrayish())) is np.ndarray


def test_torch_tensors_that_numpy_cannot_see() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `arrays`")
    f = polyml.einsum(UPDATE)
    ones = torch.ones(3)
    for bad in (torch.ones(3, requires_grad=True), torch.ones(3, device="meta"), torch.ones(3).to_sparse()):
        with pytest.raises(ArgumentError, match="cannot look into this torch array"):
            f(ones, bad)
    parameter = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    assert f(parameter, ones) is parameter
    assert parameter.tolist() == [0.5] * 3
    assert f(torch.ones(3), torch.ones(3, dtype=torch.float64).float()).dtype is torch.float32


def test_jax() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="needs the extra `arrays`")
    f = polyml.einsum(AFFINE)
    y, total = f(jnp.ones((2, 3)), jnp.ones((3, 4)), 2.0)
    assert isinstance(y, type(jnp.ones(1)))
    assert y.tolist() == [[6.0] * 4] * 2
    assert total == 48
    with pytest.raises(ArgumentError, match="read-only"):
        polyml.einsum(UPDATE)(jnp.ones(3), jnp.ones(3))
    for dtype in ("bfloat16", "float16", "complex64", "int8"):
        product = polyml.einsum("ij,jk->ik", jnp.ones((2, 3), dtype), jnp.ones((3, 4), dtype))
        assert isinstance(product, type(y))
        assert product.dtype == dtype
        assert (product == 3).all()


@pytest.mark.parametrize("dtype", ["bf16", "c64", *(pytest.param(t, marks=pytest.mark.slow) for t in ("f16", "c128"))])
def test_torch_tensors_of_half_precision_and_complex_numbers(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `arrays`")
    kind = {"f16": torch.float16, "bf16": torch.bfloat16, "c64": torch.complex64, "c128": torch.complex128}[dtype]
    memory = torch.arange(12).to(kind).reshape(3, 4)
    double = polyml.einsum(f'def f(x: {dtype}["N K"]):\n    y[n, k] = 2 * x[n, k]\n    s = y[n, k]\n    return y, s\n')
    for view in (memory, memory.t(), memory[:, ::2], memory[1:]):
        y, s = double(view)
        assert y.dtype is s.dtype is kind
        assert torch.equal(y, 2 * view)
        assert s == 2 * view.sum()
    update = polyml.einsum(f'def f(p: {dtype}["N K"]):\n    p[n, k] += 1\n    return p\n')
    before = memory.clone()
    part = memory.t()[1:]
    assert update(part) is part
    assert torch.equal(memory[:, 1:], before[:, 1:] + 1)
    assert torch.equal(memory[:, 0], before[:, 0])
    product = polyml.einsum("ij,jk->ik", memory, memory.t())
    assert product.dtype is kind
    assert torch.equal(product, memory @ memory.t())
    if dtype == "bf16":
        assert torch.equal(torch.from_dlpack(memory), memory)  # nothing is left changed
        with pytest.raises(ArgumentError, match="cannot look into this torch array"):
            double(memory.clone().requires_grad_())
