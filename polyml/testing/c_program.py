"""A lowered program's C text compiled by a C compiler and called on NumPy arrays: for tests and for comparison with other compilers."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyml.codegen.c.host import c_name
from polyml.errors import CodegenError
from polyml.lowered import Lowered

__all__ = ["WARNINGS", "CProgram", "build_shared", "compiler_path"]

Array = NDArray[np.generic]

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wno-type-limits", "-Wpedantic", "-Werror")
"""What the text must compile under; that a comparison can only be false is the program's own affair."""


def compiler_path(name: str = "gcc") -> str | None:
    """Where the compiler is, if it is installed; without one of that name the newest with a version behind it (clang-19)."""
    plain = shutil.which(name)
    if plain is not None:
        return plain
    folders = os.environ.get("PATH", "").split(os.pathsep)
    found = [path for folder in folders if folder for path in Path(folder).glob(f"{name}-*")]
    versions = {int(m[1]): str(p) for p in found if (m := re.fullmatch(rf"{re.escape(name)}-(\d+)", p.name))}
    return versions[max(versions)] if versions else None


def build_shared(text: str, compiler: str, flags: Sequence[str]) -> ctypes.CDLL:
    """The C text as a loaded shared library.

    Raises:
        CodegenError: with what the compiler says.
    """
    with tempfile.TemporaryDirectory(prefix="polyml-") as folder:
        source, library = Path(folder, "program.c"), Path(folder, "program.so")
        source.write_text(text)
        command = [compiler, *flags, "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CodegenError(f"{compiler} refuses the program:\n{done.stderr[:4000]}")
        return ctypes.CDLL(str(library))


class CProgram:
    """A program through C: called with the arguments that it was lowered for, it returns what the program returns (0-d results as 0-d arrays).

    text: in place of the program's own C text, with the same outermost function.
    """

    def __init__(
        self,
        lowered: Lowered,
        compiler: str = "gcc",
        flags: Sequence[str] = ("-O1", "-fopenmp"),
        text: str | None = None,
    ) -> None:
        stages = lowered.stages
        self._plan = stages.plan
        self._parameters = lowered.program.parameters
        self._sizes = stages.graph.sizes
        library = build_shared(lowered.text("c") if text is None else text, compiler, flags)
        self._call = library[c_name(stages.graph.name)]
        self._call.restype = ctypes.c_int

    def __call__(self, *args: object) -> tuple[Array, ...]:
        """Arrays that the program updates are written; they must have the layout and dtype that it was lowered for.

        Raises:
            IndexError: a check of the program failed.
        """
        known: dict[str, int] = {}
        buffers: dict[str, Array] = {}
        inputs = iter(self._plan.inputs)
        for parameter, value in zip(self._parameters, args, strict=True):
            if parameter.is_size:
                assert isinstance(value, int | np.integer)
                if parameter.name in self._sizes:
                    known[parameter.name] = int(value)
                continue
            buffer = self._plan.buffers[next(inputs)]
            given = np.asarray(value)
            buffers[buffer.name] = given if given.ndim else given.astype(buffer.dtype.numpy)
            known |= {str(e): n for e, n in zip(buffer.shape, given.shape, strict=True) if str(e) in self._sizes}
        for name in self._plan.outputs:
            if name not in buffers:
                made = self._plan.buffers[name]
                buffers[name] = np.empty([extent.evaluate(known) for extent in made.shape], made.dtype.numpy)
        addresses = [ctypes.c_void_p(array.ctypes.data) for array in buffers.values()]
        status = self._call(*(ctypes.c_int64(known[name]) for name in self._sizes), *addresses)
        if status > 0:
            raise IndexError(f"check {status} of the program failed")
        if status < 0:
            raise MemoryError
        return tuple(buffers[name] for name in self._plan.outputs)
