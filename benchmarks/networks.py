"""Whole networks at batch 1, weights constant, against NumPy and every peer that is installed, interleaved in one run, medians; options and columns are those of benchmarks/fused.py.

python -m benchmarks.networks [--threads N] [--clock cpu] [--only NAME,...] [--peers NAME,...] [--csv FILE] [--plot FILE]
"""

from __future__ import annotations

from benchmarks.fused import start
from benchmarks.network_cases import CASES

if __name__ == "__main__":
    start(CASES, "benchmarks.networks", __doc__)
