"""What the graph builder knows while it walks a program: variables, ops so far, enclosing loops, and which elements are written.

A declared tensor without a fill is followed exactly: the set of its written elements grows statement by statement, with loop variables as
parameters. A read inside a loop may be served by an earlier iteration, which is only known when the body has been walked; so what is still
missing is kept as a debt of the loop and settled when it ends.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import field, replace

import islpy as isl

from polyml.dtypes import DType
from polyml.einsum_frontend.names import ISL_KEYWORDS
from polyml.einsum_frontend.proofs import parameters
from polyml.einsum_frontend.ranges import Range
from polyml.errors import BoundsError, EinsumSyntaxError
from polyml.graph.assumptions import Assumptions
from polyml.graph.ir import Check, Op, Tensor
from polyml.records import dataclass
from polyml.sets.affine import Affine, Extent, affine, between
from polyml.sets.from_text import set_of
from polyml.sets.spaces import parameters_text
from polyml.source import Span

__all__ = ["Debt", "Flag", "Frame", "LoopLevel", "State", "Variable", "identifier", "loop_constraint"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor of the program text, and the SSA value that it holds now (None: declared, nothing written yet).

    key: unique in the build. weak: a 0-d result of numbers only. home: while not wholly written, the number of the frame that declared it.
    """

    key: str
    label: str
    tensor: Tensor | None
    dtype: DType
    shape: tuple[Extent, ...]
    weak: bool = False
    home: int | None = None


@dataclass(frozen=True, slots=True)
class LoopLevel:
    """An enclosing `for`."""

    range: Range
    start: Affine
    stop: Affine
    step: int


@dataclass(frozen=True, slots=True)
class Debt:
    """Elements that a read needs and that nothing is known to have written yet."""

    variable: Variable
    needed: isl.Set
    verb: str
    span: Span


@dataclass(slots=True)
class Flag:
    """A computed gather's 0-d bool: some subscript left its dimension. One SSA value per open frame, innermost last."""

    tensors: list[Tensor]
    message: str
    span: Span


@dataclass(slots=True)
class Frame:
    """The program itself, or a loop being built. `written`: elements of partly written variables written since it began, by key."""

    level: LoopLevel | None
    ops: list[Op] = field(default_factory=list)
    written: dict[str, isl.Set] = field(default_factory=dict)
    debts: list[Debt] = field(default_factory=list)
    flags: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass(slots=True)
class State(Assumptions):
    """The mutable part of a build. `env`: the variables in scope; `dead`: names whose loop has ended; `ahead`: checks before all other ops;
    `value_ranges`: the least and greatest value of integer tensors, where known, by tensor name; `reorders`: sums of products may be added up in another order."""

    frames: list[Frame] = field(default_factory=lambda: [Frame(None)])
    env: dict[str, Variable] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    inputs: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    ahead: list[Op] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    value_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    reorders: bool = False

    def fork(self) -> State:
        """A copy to try something on."""
        frames = [
            replace(f, ops=list(f.ops), written=dict(f.written), debts=list(f.debts), flags=dict(f.flags))
            for f in self.frames
        ]
        return replace(
            self,
            frames=frames,
            assumed=list(self.assumed),
            env=dict(self.env),
            dead=set(self.dead),
            inputs=set(self.inputs),
            names=set(self.names),
            ahead=list(self.ahead),
            flags=[replace(f, tensors=list(f.tensors)) for f in self.flags],
            warnings=list(self.warnings),
            value_ranges=dict(self.value_ranges),
        )

    # -- names and ops --------------------------------------------------------------------------------------------

    def fresh(self, wish: str) -> str:
        """A name that nothing in the graph has, an isl identifier."""
        name = identifier(wish, self.names)
        self.names.add(name)
        return name

    def tensor(self, wish: str, dtype: DType, shape: Sequence[Extent], label: str | None = None) -> Tensor:
        return Tensor(self.fresh(wish), dtype, tuple(affine(extent) for extent in shape), label or wish)

    def emit(self, op: Op) -> None:
        self.frames[-1].ops.append(op)

    def lookup(self, name: str, span: Span) -> Variable:
        """Raises EinsumSyntaxError when the name has no value here."""
        found = self.env.get(name)
        if found is None:
            gone = name in self.dead
            raise EinsumSyntaxError(
                f"{name} lives for one iteration of the loop that makes it" if gone else f"{name} has no value here",
                span=span,
                hint=f"declare it before the loop: {name}: dtype[shape]" if gone else "assign or declare it first",
            )
        return found

    @property
    def outer(self) -> tuple[Range, ...]:
        """Symbolic sizes and loop variables, outermost first."""
        return (*self.size_ranges, *(frame.level.range for frame in self.frames if frame.level is not None))

    # -- written elements -----------------------------------------------------------------------------------------

    def mark_written(self, variable: Variable, elements: isl.Set) -> Variable:
        """The variable after `elements` are written; without a home once they are all."""
        frame = self.frames[-1]
        before = frame.written.get(variable.key)
        now = elements if before is None else before.union(elements).coalesce()
        if variable.home == len(self.frames) - 1 and self.box(variable).is_subset(now):
            frame.written.pop(variable.key, None)
            return replace(variable, home=None)
        frame.written[variable.key] = now
        return variable

    def require_written(self, variable: Variable, elements: isl.Set, verb: str, span: Span) -> None:
        """Every one of `elements` is written before this point.

        Raises:
            BoundsError: when none of the enclosing loops' earlier iterations can have written one.
        """
        if variable.home is not None:
            self._owe(len(self.frames) - 1, Debt(variable, elements, verb, span))

    def _owe(self, depth: int, debt: Debt) -> None:
        known = self.frames[depth].written.get(debt.variable.key)
        missing = debt.needed if known is None else debt.needed.subtract(known)
        if missing.is_empty():
            return
        home = debt.variable.home
        assert home is not None, "internal: only partly written variables have debts"
        if depth > home:
            self.frames[depth].debts.append(replace(debt, needed=missing))
            return
        if self.avoid(missing):
            return
        point = missing.sample_point()
        element = [
            point.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(missing.dim(isl.dim_type.set))
        ]
        at = [
            f"{point.get_space().get_dim_name(isl.dim_type.param, d)} = "
            f"{point.get_coordinate_val(isl.dim_type.param, d).to_python()}"
            for d in range(missing.dim(isl.dim_type.param))
        ]
        label = debt.variable.label + (f"[{', '.join(map(str, element))}]" if element else "")
        raise BoundsError(
            f"{label} is {debt.verb} before it is written" + (f" (at {', '.join(at)})" if at else ""),
            span=debt.span,
            hint=f"fill it where it is declared (`= 0`), or write it first: {debt.variable.label} has no values of its own",
        )

    def settle(self, frame: Frame) -> None:
        """Moves what a finished loop wrote and still owes to the frame around it (`frame` is already popped)."""
        assert frame.level is not None, "internal: the program's own frame is not settled"
        depth = len(self.frames) - 1
        for debt in frame.debts:
            wrote = frame.written.get(debt.variable.key)
            needed = debt.needed
            if wrote is not None:
                needed = needed.subtract(_over_iterations(wrote, frame.level, earlier=True))
            self._owe(depth, replace(debt, needed=needed))
        for name, variable in list(self.env.items()):
            wrote = frame.written.get(variable.key)
            if wrote is not None and variable.home is not None and variable.home <= depth:
                self.env[name] = self.mark_written(variable, _over_iterations(wrote, frame.level, earlier=False))

    def box(self, variable: Variable) -> isl.Set:
        """All elements, in the iterations that the loops around have."""
        dims = [f"e{d}'" for d in range(len(variable.shape))]
        limits = [f"0 <= {e} < {affine(extent).isl_text()}" for e, extent in zip(dims, variable.shape, strict=True)]
        outer = self.outer
        limits += [r.constraint for r in outer if r.constraint]
        where = f" : {' and '.join(limits)}" if limits else ""
        return set_of(f"{parameters(outer)}{{ [{', '.join(dims)}]{where} }}")

    # -- checks ---------------------------------------------------------------------------------------------------

    def late_checks(self) -> list[Op]:
        """The checks of computed subscripts, for the end of the program."""
        return [Check(flag=f.tensors[0], error="IndexError", message=f.message, span=f.span) for f in self.flags]


def _over_iterations(written: isl.Set, level: LoopLevel, *, earlier: bool) -> isl.Set:
    """The union of `written` over the loop's iterations; with `earlier`, over those before the iteration of the loop variable's value."""
    variable = level.range.name
    position = written.find_dim_by_name(isl.dim_type.param, variable)
    if position < 0:
        written = written.insert_dims(isl.dim_type.set, 0, 1)
    else:
        written = written.move_dims(isl.dim_type.set, 0, isl.dim_type.param, position, 1)
    rank = written.dim(isl.dim_type.set) - 1
    elements = [f"e{d}'" for d in range(rank)]
    previous = f"{variable}'"
    bounds = [loop_constraint(previous, level.start, level.stop, level.step)]
    if earlier:
        bounds += [
            f"{previous} < {variable}" if level.step > 0 else f"{previous} > {variable}",
            f"({level.range.constraint})",
        ]
    outer = sorted((level.start.variables() | level.stop.variables()) | ({variable} if earlier else set()))
    head = parameters_text(outer)
    pick = isl.Map(
        f"{head}{{ [{', '.join([previous, *elements])}] -> [{', '.join(elements)}] : {' and '.join(bounds)} }}"
    )
    return written.apply(pick).coalesce()


def loop_constraint(variable: str, start: Affine, stop: Affine, step: int) -> str:
    """`variable` takes the values of range(start, stop, step)."""
    inside = between(variable, start, stop) if step > 0 else between(variable, stop + 1, start + 1)
    return inside if abs(step) == 1 else f"{inside} and ({variable} - ({start.isl_text()})) mod {abs(step)} = 0"


def identifier(wish: str, taken: Container[str]) -> str:
    """An isl identifier that is not taken, like `wish`."""
    base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in wish)
    if not base or base[0].isdigit():
        base = f"_{base}"
    name, count = base, 0
    while name in taken or name.lower() in ISL_KEYWORDS:
        count += 1
        name = f"{base}_{count}"
    return name
