"""A Region: ops that are compiled together, as one scop."""

from __future__ import annotations

from polyml.graph.ir import Equation, Loop, Tensor
from polyml.records import dataclass

__all__ = ["Region"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Equations and top-level Loops in executable order.

    name: an identifier, unique in the program. inputs: tensors made before the region that it uses. outputs: tensors that it makes and that are used after it, returned, or
    held by a written input at the end.
    """

    name: str
    ops: tuple[Equation | Loop, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
