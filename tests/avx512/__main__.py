"""`AVX512=znver5 python -m tests.avx512 polyml fuzz`: a module, with its arguments, run where the host is another CPU (emulated.py)."""

import os
import runpy
import sys

from tests.avx512.emulated import emulate

emulate(os.environ.get("AVX512", "sapphirerapids"))
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
