"""The host function: launches in order, temporaries given back on every way out."""

import ctypes

import numpy as np
import pytest

from polyml.codegen.llvm.machine import load_object
from polyml.codegen.loops import Function
from polyml.dtypes import boolean, f64
from polyml.graph.plan import Allocate, Argument, Buffer, CheckFlag, Free, Launch, Plan, Step
from polyml.runtime.host import STACK_BYTES, emit_host
from polyml.runtime.load import compile_plainly
from polyml.runtime.signature import NO_MEMORY, OK, KernelSignature, SizeParameter
from tests.runtime.handmade import array, buffer, function, make_kernel, result, shape

ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_size_t)
REGION = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int64)


class Host:
    """A host function over regions and memory that write down what happens. It launches f(x, t, n), checks the flag in t, launches f(t, x, n).

    `log` holds ("get", bytes), ("put", address) and ("f", arguments).
    """

    def __init__(self, *, size: int | None, refuse: bool = False) -> None:
        self.log: list[tuple[str, object]] = []
        self.flag = 0
        self.refuse = refuse
        t = Buffer(name="t", kind="temporary", dtype=f64, shape=shape("N" if size is None else size, 2))
        steps: tuple[Step, ...] = (
            Allocate("t", None if size is None else 16 * size),
            Launch(0, (Argument("a", "x"), Argument("b", "t"))),
            CheckFlag("t", "flagged", "IndexError"),
            Launch(0, (Argument("a", "t"), Argument("b", "x"))),
            Free("t"),
        )
        plan = Plan(buffers={"t": t}, steps=steps, inputs=("x",), outputs=(), storage={})
        signature = KernelSignature(
            name="f", parameters=(array("x", 4), SizeParameter(name="N")), sizes=("N",), checks=("flagged",)
        )
        functions: tuple[Function, ...] = (function("region", ("a", "b"), ("N",)),)
        self.text = emit_host(signature, plan, functions)
        self.callbacks = (ALLOCATE(self.allocate), FREE(self.free), REGION(self.region))
        addresses = [ctypes.cast(c, ctypes.c_void_p).value for c in self.callbacks]
        symbols = dict(zip(("polyml_scratch", "polyml_scratch_free", "region"), addresses, strict=True))
        self.loaded = load_object(compile_plainly(self.text), ("run",), symbols)  # type: ignore[arg-type]  # callbacks have addresses
        self.memory = np.zeros(1000)

    def allocate(self, size: int) -> int:
        self.log.append(("get", size))
        return 0 if self.refuse else self.memory.ctypes.data

    def free(self, address: int) -> None:
        if address:
            self.log.append(("put", address))

    def region(self, a: int, b: int, n: int) -> None:
        self.log.append(("f", (a, b, n)))
        ctypes.c_uint8.from_address(b).value = self.flag

    def __call__(self, x: np.ndarray, n: int) -> int:
        call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(self.loaded.addresses["run"])
        status: int = call((ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_int64 * 1)(n))
        return status


@pytest.mark.parametrize("size", [None, STACK_BYTES])
def test_a_large_or_symbolic_temporary(size: int | None) -> None:
    host, x = Host(size=size), np.zeros(4, np.float32)
    t = host.memory.ctypes.data
    bytes_ = 16 * (7 if size is None else size)
    assert host(x, 7) == OK
    assert host.log == [("get", bytes_), ("f", (x.ctypes.data, t, 7)), ("f", (t, x.ctypes.data, 7)), ("put", t)]


@pytest.mark.parametrize("size", [None, STACK_BYTES])
def test_a_failed_check_gives_it_back(size: int | None) -> None:
    host, x = Host(size=size), np.zeros(4, np.float32)
    host.flag = 1
    assert host(x, 7) == 1
    assert [kind for kind, _ in host.log] == ["get", "f", "put"]


def test_no_memory() -> None:
    host = Host(size=None, refuse=True)
    assert host(np.zeros(4, np.float32), 7) == NO_MEMORY
    assert host.log == [("get", 112)]


def test_a_small_temporary_lives_on_the_stack() -> None:
    host, x = Host(size=2), np.zeros(4, np.float32)
    assert host(x, 7) == OK
    (_, first), (_, second) = host.log
    assert isinstance(first, tuple)
    assert first[1] % 64 == 0
    assert second == (first[1], x.ctypes.data, 7)


def test_text(golden: object) -> None:
    assert callable(golden)
    golden("runtime/host", Host(size=None).text)


def test_two_small_temporaries_are_apart() -> None:
    """s = x, t = flag, then o = s: a write into t does not reach s."""
    region = """
define i32 @put(ptr %s, ptr %t) {
  store float 5.0, ptr %s
  store i8 0, ptr %t
  ret i32 0
}
define i32 @get(ptr %s, ptr %o) {
  %v = load float, ptr %s
  store float %v, ptr %o
  ret i32 0
}
"""
    kernel = make_kernel(
        [], [result("o")], region, [function("put", ("s", "t")), function("get", ("s", "o"))],
        temporaries=[buffer("s", 1), buffer("t", dtype=boolean)], checks=[("t", "never")],
    )  # fmt: skip
    assert kernel() == 5
