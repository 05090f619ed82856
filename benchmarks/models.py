"""Layers and blocks of networks against NumPy and every peer that is installed, interleaved in one run, medians; options and columns are those of benchmarks/fused.py.

python -m benchmarks.models [--threads N] [--clock cpu] [--only NAME,...] [--peers NAME,...] [--csv FILE] [--plot FILE]
"""

from __future__ import annotations

from benchmarks.fused import start
from benchmarks.model_cases import CASES

if __name__ == "__main__":
    start(CASES, "benchmarks.models", __doc__)
