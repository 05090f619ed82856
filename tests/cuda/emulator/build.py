"""Generated CUDA C as a library for this machine: the text as it stands, between the emulator and a launcher per kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["library_bytes"]

HEADER = Path(__file__).with_name("cuda_emulator.h")
OPTIONS = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-w",
           "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]  # fmt: skip
"""A vector at the wrong address traps."""
KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\(\d+\) (\w+)\(([^)]*)\)')


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


def library_bytes(text: str) -> bytes:
    """The shared library."""
    compiler = shutil.which("g++")
    assert compiler is not None, "the emulator needs g++"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        source.write_text(f'#include "{HEADER}"\n{text}\n{launchers(text)}\n')
        command = [compiler, f"-I{HEADER.parent}", *OPTIONS, "-o", str(library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stderr[:3000]}\n{text}"
        return library.read_bytes()
