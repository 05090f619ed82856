"""Generated CUDA C as a library for this machine: the text as it stands, between the emulator and a launcher per kernel."""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["library_bytes"]

HEADER = Path(__file__).with_name("cuda_emulator.h")
OPTIONS = ["-std=c++14", "-O1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w",
           "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]  # fmt: skip
"""A vector at the wrong address traps. The headers of C++17 take twice as long to read."""
KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\([\d, ]+\) (\w+)\(([^)]*)\)')


def launchers(text: str) -> str:
    """Functions with one signature for all kernels: extents of grid and block, an order, and the arguments as 64-bit words."""
    made = []
    for name, parameters in KERNEL.findall(text):
        kinds = [parameter.rsplit(maxsplit=1)[0].replace("__restrict__", "") for parameter in parameters.split(",")]
        words = ", ".join(f"({kind.strip()})words[{k}]" for k, kind in enumerate(kinds))
        made.append(
            f'extern "C" int launch_{name}(const unsigned* dims, unsigned order, const unsigned long long* words) {{\n'
            f"  return emu::launch([=] {{ {name}({words}); }}, dims, order);\n}}"
        )
    return "\n".join(made)


@functools.cache
def _prepared() -> Path:
    """A folder with the headers, the large one as g++ has read it already: that is most of what a small kernel costs."""
    folder = Path(tempfile.mkdtemp(prefix="emulator"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for header in HEADER.parent.glob("*.h"):
        shutil.copy(header, folder)
    _run(["-x", "c++-header", "-o", f"{folder / HEADER.name}.gch", str(folder / HEADER.name)])
    return folder


def _run(arguments: list[str], text: str = "") -> None:
    compiler = shutil.which("g++")
    assert compiler is not None, "the emulator needs g++"
    done = subprocess.run([compiler, *OPTIONS, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr[:3000]}\n{text}"


def _source(texts: Sequence[str]) -> str:
    """One translation unit. Kernels of several texts may have the same names: each text is a namespace, and its kernels end in its number."""
    if len(texts) == 1:
        return f"{texts[0]}\n{launchers(texts[0])}"
    lines = [line for text in texts for line in text.split("\n") if line.startswith("#include")]
    parts = list(dict.fromkeys(lines))
    for number, text in enumerate(texts):
        body = "\n".join(line for line in text.split("\n") if not line.startswith("#include"))
        for name, _ in KERNEL.findall(body):
            body = re.sub(rf"\b{name}\b", f"{name}_{number}", body)
        parts.append(f"namespace text_{number} {{\n{body}\n{launchers(body)}\n}}")
    return "\n".join(parts)


@functools.lru_cache(maxsize=64)
def library_bytes(*texts: str, prepared: bool = True) -> bytes:
    """The shared library of a text, or of several, as `_source` has them.

    Args:
        prepared: with headers that are read once per process: not worth it for a single library.
    """
    headers = _prepared() if prepared else HEADER.parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        text = _source(texts)
        source.write_text(f'#include "{HEADER.name}"\n{text}\n')
        _run(["-shared", f"-I{headers}", "-o", str(library), str(source)], text)
        return library.read_bytes()
