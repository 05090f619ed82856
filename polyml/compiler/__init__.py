"""From programs to kernels. These are hundreds of modules, imported when the first program is compiled, while the garbage collector rests: what they make stays.

isl comes first, and an interrupt waits for it.
"""

from __future__ import annotations

from polyml.collection import modules_stay
from polyml.interrupts import signals_wait

with modules_stay():
    with signals_wait():
        import islpy  # noqa: F401
    import polyml.compiler.driver  # noqa: F401
