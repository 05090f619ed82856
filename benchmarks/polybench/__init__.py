"""PolyBench/C 4.2.1's thirty kernels in polyml's language, written from their mathematical definitions.

`KERNELS` has them by name; `python -m benchmarks.polybench` measures them.
"""

from benchmarks.polybench.datamining import DATAMINING
from benchmarks.polybench.kernel import SIZES, Array, Kernel
from benchmarks.polybench.linear_algebra import LINEAR_ALGEBRA
from benchmarks.polybench.medley import MEDLEY
from benchmarks.polybench.solvers import SOLVERS
from benchmarks.polybench.stencils import STENCILS

__all__ = ["KERNELS", "SIZES", "Array", "Kernel"]

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel for kernel in (*DATAMINING, *LINEAR_ALGEBRA, *SOLVERS, *MEDLEY, *STENCILS)
}
