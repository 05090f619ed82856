"""Vector loops over complex numbers alone, whose real and imaginary parts are taken apart and put together within 16 bytes.

Parts in the order of memory take two shuffles a vector, of which one moves lanes between halves of a register; what stays within 16 bytes takes one. Lanes then stand in another order, the same one in all values of
the loop: nothing sees it where all that is read and written is complex, of one size, side by side, or the same for all lanes. Of four c128 (A and B are registers in memory):

    A = r0 i0 r1 i1, B = r2 i2 r3 i3  ->  real parts r0 r2 r1 r3 (vunpcklpd), imaginary ones i0 i2 i1 i3 (vunpckhpd)

Lanes of c64 stand in an order of their own, so that loops which read c64 and write c128 keep the order of memory.
"""

from __future__ import annotations

from polyml.codegen.llvm.state import State
from polyml.codegen.loops import Allocate, Assign, For, Place
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import DType
from polyml.expressions import IndexValue, Read, Subscript, walk
from polyml.sets.affine import Affine

__all__ = ["has_parts_in_place"]


def has_parts_in_place(state: State, loop: For) -> bool:
    """Whether the order of the lanes in the vector loop is nobody's business, and complex numbers are read or written by it."""
    steps = list(walk_nodes(loop.body))
    own = {step.variable.name for step in steps if isinstance(step, Allocate) and step.variable.scope == "register"}
    kinds: set[DType | None] = set()
    for step in steps:
        match step:
            case Allocate() if step.variable.name in own:
                pass
            case Assign(reduction=None, scan=None, across=False, target=Place(variable=name, subscripts=subscripts)):
                if name not in own:
                    kinds.add(_kind_of_row(state, name, subscripts, loop.variable))
                for part in walk(step.value):
                    if isinstance(part, IndexValue) and loop.variable in part.affine.variables():
                        return False
                    if isinstance(part, Read) and not (part.tensor in own or _is_same(part.subscripts, loop.variable)):
                        kinds.add(_kind_of_row(state, part.tensor, part.subscripts, loop.variable))
            case _:
                return False
    return (
        len(kinds) == 1
        and None not in kinds
        and any(isinstance(step, Assign) and step.target.variable not in own for step in steps)
    )


def _is_same(subscripts: tuple[Subscript, ...], variable: str) -> bool:
    """Whether all lanes read one element."""
    return all(isinstance(s, Affine) and s.stride(variable) == 0 for s in subscripts)


def _kind_of_row(state: State, name: str, subscripts: tuple[Subscript, ...], variable: str) -> DType | None:
    """The type of complex numbers that lanes have side by side; None where they are real or lie elsewhere."""
    slot = state.slots.get(name)
    if (
        slot is None
        or not slot.variable.dtype.is_complex
        or slot.variable.scope == "register"
        or slot.variable.lanes > 1
    ):
        return None
    strides = [s.stride(variable) if isinstance(s, Affine) else None for s in subscripts]
    row = bool(strides) and slot.strides[-1] == 1 and strides[-1] == 1 and not any(strides[:-1]) and None not in strides
    return slot.variable.dtype if row else None
