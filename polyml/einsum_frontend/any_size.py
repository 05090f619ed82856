"""Which sizes of a program stay symbolic (`dynamic=`), and what its parameters' shapes are in them."""

from __future__ import annotations

from collections.abc import Collection

from polyml.einsum_frontend.quasi_affine import Names, nodes, to_affine
from polyml.einsum_frontend.syntax import Program, SizeRef
from polyml.einsum_frontend.windows import window_sizes
from polyml.errors import NotAffineError, PolymlError, ShapeError
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["AnyShapes", "any_shapes", "sizes_of_shapes"]


@dataclass(frozen=True, slots=True)
class AnyShapes:
    """names: the sizes that stay symbolic. shapes: per parameter, per dimension its extent in them, or None where it is the argument's number. windows: those names that are the length of a window."""

    names: tuple[str, ...]
    shapes: tuple[tuple[Affine | None, ...], ...]
    windows: frozenset[str] = frozenset()

    def only(self, names: Collection[str]) -> AnyShapes | None:
        """The same where of the sizes these alone stay symbolic, with those that share a dimension with one of them; None: there are none."""
        shared = [extent.variables() for shape in self.shapes for extent in shape if extent is not None]
        kept: frozenset[str] = frozenset(names)
        while more := frozenset[str]().union(*(used for used in shared if used & kept)) - kept:
            kept |= more
        shapes = (tuple(e if e is not None and e.variables() & kept else None for e in shape) for shape in self.shapes)
        return (
            AnyShapes(tuple(n for n in self.names if n in kept), tuple(shapes), self.windows & kept) if kept else None
        )


def sizes_of_shapes(program: Program) -> tuple[str, ...]:
    """The sizes in the parameters' shapes, in the order of the text."""
    entries = [entry for parameter in program.parameters for entry in parameter.shape or ()]
    return tuple(dict.fromkeys(n.name for entry in entries for n in nodes(entry) if isinstance(n, SizeRef)))


def any_shapes(program: Program, dynamic: bool | tuple[str, ...]) -> AnyShapes | None:
    """What `dynamic` asks for: True for all sizes of shapes, or their names. None: there are none.

    Raises:
        PolymlError: an unknown name. ShapeError: a dimension has one of them and another size. NotAffineError: a shape that is not affine.
    """
    known = sizes_of_shapes(program)
    names = known if dynamic is True else tuple(dynamic or ())
    if unknown := [name for name in names if name not in known]:
        raise PolymlError(
            f"{program.name} has no size {unknown[0]} in its shapes", hint=f"its sizes: {', '.join(known) or 'none'}"
        )
    shapes: list[tuple[Affine | None, ...]] = []
    for parameter in program.parameters:
        shape: list[Affine | None] = []
        for entry in parameter.shape or ():
            used = {n.name for n in nodes(entry) if isinstance(n, SizeRef)}
            if used.isdisjoint(names):
                shape.append(None)
                continue
            if fixed := sorted(used.difference(names)):
                raise ShapeError(
                    f"a dimension of {parameter.name} has the size {fixed[0]}, which is fixed, and one that is dynamic",
                    span=entry.span,
                    hint=f"make {fixed[0]} dynamic too",
                )
            extent = to_affine(entry, Names({name: affine(name) for name in names}, {}, {}))
            if extent is None:
                raise NotAffineError(f"the shape of {parameter.name} must be affine in sizes", span=entry.span)
            shape.append(extent)
        shapes.append(tuple(shape))
    return AnyShapes(names, tuple(shapes), window_sizes(program).intersection(names)) if names else None
