"""What is known of elements without asking memory: what was just read for the same lanes, or written by them."""

from __future__ import annotations

from polyml.codegen.llvm.ir import Value
from polyml.codegen.llvm.memory.access import Access
from polyml.codegen.llvm.state import State, stored_type
from polyml.expressions import Apply, Read, Subscript, reads_of
from polyml.sets.affine import Affine

__all__ = ["forget", "forget_register", "is_known", "keep", "remember"]


def is_known(state: State, name: str, subscripts: tuple[Subscript, ...]) -> bool:
    """Whether reading the element for these lanes touches no memory: it is in a register, or what was just read is used again."""
    if state.slots[name].variable.scope == "register":
        return True
    keys = [state.lanes, (state.lanes, False), (state.lanes, True)]
    read = [("load", name, subscripts, lanes) in state.builder.known for lanes in keys]
    return read[0] or all(read[1:])


def keep(state: State, key: tuple[str, str, tuple[Subscript, ...], object], found: Value) -> None:
    """What was read is known from here on, until the array is written or a register that tells the place."""
    known = state.builder.known
    known[key] = found
    for subscript in key[2]:
        if not isinstance(subscript, Affine):
            for read in reads_of(subscript):
                if state.slots[read.tensor].variable.scope == "register":
                    known["tells", read.tensor] = found


def forget_register(state: State, name: str) -> None:
    """The register is written: what it was, and what was read at places that it told."""
    known = state.builder.known
    known.pop(("register", name), None)
    if known.pop(("tells", name), None) is None:
        return
    for key in list(known):
        match key:
            case ("load", _, tuple(subscripts), _) if any(
                read.tensor == name for s in subscripts if not isinstance(s, Affine) for read in reads_of(s)
            ):
                del known[key]
            case _:
                pass


def forget(state: State, name: str) -> None:
    """The array is written: what was loaded from it, or by subscripts that read any array, may be different now."""
    known = state.builder.known
    for key in list(known):
        match key:
            case ("load", str(array), tuple(subscripts), _) if array == name or not all(
                isinstance(s, Affine) for s in subscripts
            ):
                del known[key]
            case ("place", (Apply() | Read()) as place, _) if any(read.tensor == name for read in reads_of(place)):
                del known[key]
            case _:
                pass


def remember(state: State, where: Access, subscripts: tuple[Subscript, ...], value: Value) -> None:
    """Lanes of which some do not act wrote the value: who reads the elements in the same lanes takes it from the register. LLVM does not see that, and a processor hands a masked store's bytes on from the cache
    only, some 20 cycles later."""
    lanes, variable = state.lanes, where.slot.variable
    if lanes is None or lanes.mask is None or where.stride != 1 or not variable.dtype.is_float:
        return
    if value.type == stored_type(variable, lanes.width):
        keep(state, ("load", variable.name, subscripts, lanes), value)
