"""Compile, or load what an earlier process has compiled: files.py keeps them, fingerprint.py says when two kernels are the same."""

from __future__ import annotations

from collections.abc import Callable

from polyml.codegen.llvm.machine import compiler, host
from polyml.debug import compilation, stage
from polyml.einsum_frontend.syntax import Program
from polyml.options import Options
from polyml.runtime.arguments import AnyInt
from polyml.runtime.cache.files import Store, store
from polyml.runtime.cache.fingerprint import digest, versions
from polyml.runtime.compiled import Compiled
from polyml.runtime.entry.layout import array_header
from polyml.runtime.kernel import Kernel
from polyml.runtime.keys import REGIONS, Key, ints_of, with_numbers
from polyml.runtime.native import load_compiled
from polyml.runtime.signature import SizeParameter

__all__ = ["cached_kernel", "kernel_digest"]


def cached_kernel(
    program: Program, key: Key, options: Options, compile: Callable[[], Compiled], shown: object = None
) -> Kernel:
    """The kernel of a program for one key of the dispatcher: from the cache, else by `compile`, whose result is kept.

    shown: what else decides about the code: the signature that callers see, where it differs from the program's.

    Whoever asks to see or to check the stages (options `debug`, `dump`, `verify`) gets them: nothing is read from the cache then.

    Raises:
        DeviceUnavailableError: its target is not this machine.
    """
    options.machine.must_run_here()  # before minutes go into code that nobody can call
    kept = store()
    threads = options.threads
    with compilation(program.name):
        if kept is None:
            return load_compiled(compile(), threads=threads)
        shelf = _Shelf(kept, program, key, options, shown)
        found = None if options.debug or options.dump or options.verify else shelf.find()
        if found is not None:
            return found
        made = compile()
        kernel = load_compiled(made, threads=threads)
        kept.put(shelf.place_of(made), made.to_bytes())
    return kernel


class _Shelf:
    """The places of the kernels for a key: one, or with symbolic ints `REGIONS`, and one for the numbers of the call alone."""

    def __init__(self, kept: Store, program: Program, key: Key, options: Options, shown: object) -> None:
        self.kept, self.threads = kept, options.threads
        names = [p.name for p in program.parameters]
        self.values = ints_of(names, key)
        self.symbolic = {n for n, k in zip(names, key, strict=True) if isinstance(k, AnyInt)}
        with stage("fingerprint"):
            first = kernel_digest(program, key, options, shown)
            self.regions = [first, *(digest(first, k) for k in range(1, REGIONS if self.symbolic else 1))]
            self.exact = kernel_digest(program, with_numbers(key), options, shown) if self.symbolic else first
        self.free: list[str] = []

    def find(self) -> Kernel | None:
        """The kernel that serves the call."""
        self.free = []
        for name in self.regions:
            found = _load(self.kept, name, self.threads)
            if found is None:
                self.free.append(name)
            elif found.signature.serves(self.values):
                return found
        return _load(self.kept, self.exact, self.threads) if self.symbolic else None

    def place_of(self, made: Compiled) -> str:
        """Where to keep it."""
        numbers = {p.name for p in made.signature.parameters if isinstance(p, SizeParameter) and p.value is not None}
        free = self.free or self.regions
        return self.exact if self.symbolic & numbers else free[0]


def kernel_digest(program: Program, key: Key, options: Options, shown: object = None) -> str:
    """The name of the kernel's file: equal where the code is (for how many threads it is made decides about its parallel loops)."""
    return digest(versions(), compiler(), array_header(), host(), program, key, options.of_code, shown)


def _load(kept: Store, name: str, threads: int | None) -> Kernel | None:
    with stage("read"):
        data = kept.get(name)
    if data is None:
        return None
    try:
        with stage("load"):
            return load_compiled(Compiled.from_bytes(data), threads=threads)
    except (ValueError, RuntimeError):  # whole, and yet nothing that can be linked here
        kept.damaged(name)
        return None
