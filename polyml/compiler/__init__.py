"""From programs to kernels. These are hundreds of modules, imported when the first program is compiled, while the garbage collector rests: what they make stays."""

from __future__ import annotations

import gc

_collecting = gc.isenabled()
gc.disable()
try:
    import polyml.compiler.driver  # noqa: F401
finally:
    if _collecting:
        gc.enable()
