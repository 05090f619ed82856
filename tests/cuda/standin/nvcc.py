"""Stands for nvcc: `nvcc.py --cubin .. -o CUBIN SOURCE` makes of CUDA C what driver.cpp loads as a cubin."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.cuda.emulator.build import library_bytes

if __name__ == "__main__":
    if "--version" in sys.argv:
        print("stand-in for nvcc, release 13.0")
    else:
        made = library_bytes(Path(sys.argv[-1]).read_text(), prepared=False)
        Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes(b"STAND-IN" + struct.pack("<q", len(made)) + made)
