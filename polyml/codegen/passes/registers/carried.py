"""Elements that the next iterations read again stay in registers (Callahan, Carr, Kennedy, "Improving register allocation for subscripted variables", PLDI
1990, section 3.3: across iterations).

A recurrence otherwise waits for its own stores: a load that follows the store of its element by an iteration takes about five cycles, on top of the four of the addition
that it goes into. What nothing reads from memory then need not be stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyml.codegen.element_accesses import ElementAccess, Lanes, accesses_of, always_apart
from polyml.codegen.loops import Allocate, Assign, For, Function, If, Node, Place, Prefetch, Variable
from polyml.codegen.map_loops import map_loops
from polyml.codegen.passes.registers.unread import without_unread
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import map_places, subscript_variables, variables_by_name, walk_nodes
from polyml.dtypes import boolean, i64
from polyml.expressions import Apply, Expr, IndexValue, Read, Subscript
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.sets.affine import Affine, affine

__all__ = ["carry_values"]

FARTHEST = 4
"""Iterations that a value is kept for, at most."""

REGISTERS = 8
"""Values that a loop keeps from one iteration to the next, at most: half of the vector registers of AVX2."""


def carry_values(function: Function) -> Function:
    """The function with what innermost sequential loops with recurrences read again some iterations later in registers, and without stores into scratch memory that nothing reads then.

    Rewrite:
        for (j = 2; j < n; j++) y[j] = a * y[j - 1] + b * y[j - 2];
        -> y_1 = y[1]; y_2 = y[0];
           for (j = 2; j < n; j++) { y_0 = a * y_1 + b * y_2; y[j] = y_0; y_2 = y_1; y_1 = y_0; }

    A loop that may have no iteration does all that under the condition that it has one.
    """
    variables = variables_by_name(function)
    taken = names_in(function)
    memory = {name: v for name, v in variables.items() if v.scope in ("global", "local")}
    pass_ = _Carries(memory, taken, set())
    made = map_loops(function, pass_.innermost)
    if made is function:
        return function
    unread = {n for n in pass_.kept if memory[n].scope == "local"}
    return replace(made, body=without_unread(made.body, unread, outside(function)))


@dataclass(frozen=True, slots=True)
class _Group:
    """Accesses of one array that differ by iterations: in iteration j, the one at offset o is to `line + strides * (j + o)`."""

    variable: Variable
    line: tuple[Affine, ...]
    strides: tuple[int, ...]
    members: list[tuple[int, ElementAccess]]

    def offset(self, subscripts: Sequence[Subscript], loop: For) -> int | None:
        """Of an access with these subscripts; None for one of another group."""
        found: int | None = None
        for subscript, start, stride in zip(subscripts, self.line, self.strides, strict=True):
            if not isinstance(subscript, Affine):
                return None
            rest = subscript - start - affine(loop.variable) * stride
            if not rest.is_constant or (rest.constant % stride if stride else rest.constant):
                return None
            if stride:
                if found not in (None, rest.constant // stride):
                    return None
                found = rest.constant // stride
        return found

    def place(self, iteration: Affine) -> tuple[Affine, ...]:
        """The subscripts at offset 0 of that iteration."""
        return tuple(start + iteration * stride for start, stride in zip(self.line, self.strides, strict=True))


@dataclass(frozen=True, slots=True)
class _Carry:
    """A group in registers: number d has the element that is written (without a write: first read) d iterations before. leading: the offset of number 0.
    store: the position of the write in the loop's body, or None. least: iterations in which all that is loaded ahead is read."""

    group: _Group
    leading: int
    reach: int
    store: int | None
    least: int
    registers: tuple[Variable, ...]

    def read(self, read: Read, loop: For, position: int) -> Expr:
        """The register instead of a read in the loop's child `position`; or the read as it is."""
        offset = self.group.offset(read.subscripts, loop) if read.tensor == self.group.variable.name else None
        if offset is None or not 0 <= self.leading - offset <= self.reach:
            return read
        if offset == self.leading and self.store is not None and position <= self.store:
            return read  # before it is written
        return Read(self.registers[self.leading - offset].name, (), read.dtype)


@dataclass(frozen=True, slots=True)
class _Carries:
    """One run over one function. variables: its arrays. kept: those of which a loop keeps what it writes."""

    variables: Mapping[str, Variable]
    taken: set[str]
    kept: set[str]

    def innermost(self, loop: For, ranges: Ranges, lanes: For | None) -> Node | None:
        if loop.kind != "sequential" or not all(isinstance(n, Assign | Prefetch | If) for n in walk_nodes(loop.body)):
            return None
        carries = self.carries(loop, ranges, None if lanes is None else Lanes(lanes.variable, lanes.width))
        if not carries:
            return loop
        ahead, inside, behind = list[Node](), list[Node](), list[Node]()
        for carry in carries:
            group, own = carry.group, carry.registers
            for d in range(1, carry.reach + 1):
                ahead.append(_load(own[d], group, loop.lower + (carry.leading - d)))
            behind += [_move(Place(own[d].name, ()), own[d - 1]) for d in range(carry.reach, 0, -1)]
            if carry.store is None:
                inside.append(_load(own[0], group, affine(loop.variable) + carry.leading))
            else:
                self.kept.add(group.variable.name)
        for position, node in enumerate(loop.body):
            inside += _with_registers(node, position, carries, loop)
        nodes: tuple[Node, ...] = (*ahead, replace(loop, body=(*inside, *behind)))
        least = max(carry.least for carry in carries)
        if not ranges.is_positive(loop.upper - loop.lower - (least - 1)):
            ends = (IndexValue(loop.lower + (least - 1), i64), IndexValue(loop.upper, i64))
            shorter = (loop,) if least > 1 else ()
            nodes = (If(condition=Apply("lt", ends, boolean), then=nodes, otherwise=shorter),)
        for register in (r for carry in reversed(carries) for r in reversed(carry.registers)):
            nodes = (Allocate(variable=register, body=nodes),)
        return nodes[0]

    def carries(self, loop: For, ranges: Ranges, lanes: Lanes | None) -> list[_Carry]:
        """The groups that go into registers, those that the loop writes first; none when it writes none of them."""
        if loop.step != 1 or not _writes_on(loop):
            return []
        groups, strange = self.groups(loop, ranges)
        found: list[_Carry] = []
        left = REGISTERS
        for written in (True, False):
            for group in groups:
                name = group.variable.name
                if name in strange or any(access.write for _, access in group.members) != written:
                    continue
                others = [a for g in groups if g is not group for _, a in g.members if a.variable == name and a.write]
                if not all(always_apart(group.members[0][1], other, lanes) for other in others):
                    continue
                carry = self.carry(group, loop, lanes)
                trips = ranges.highest(loop.upper - loop.lower)
                if carry is not None and carry.reach <= left and (trips is None or trips >= carry.reach):
                    left -= carry.reach
                    found.append(carry)
            if not found:
                return []
        return found

    def groups(self, loop: For, ranges: Ranges) -> tuple[list[_Group], set[str]]:
        """The groups, in order of their first access, and the arrays that are accessed in other ways."""
        groups: list[_Group] = []
        strange: set[str] = set()
        for access in accesses_of(loop, ranges, of=self.variables.keys()):
            group, offset = None, 0
            for other in groups:
                known = other.offset(access.subscripts, loop) if other.variable.name == access.variable else None
                if known is not None:
                    group, offset = other, known
                    break
            if group is None:
                subscripts = () if access.indirect else access.element[1]
                strides = tuple(s.stride(loop.variable) for s in subscripts)
                known_strides = tuple(s for s in strides if s is not None)
                if access.indirect or len(known_strides) < len(strides):
                    strange.add(access.variable)
                    continue
                line = tuple(s - affine(loop.variable) * k for s, k in zip(subscripts, known_strides, strict=True))
                group = _Group(self.variables[access.variable], line, known_strides, [])
                groups.append(group)
            group.members.append((offset, access))
        return groups, strange

    def carry(self, group: _Group, loop: For, lanes: Lanes | None) -> _Carry | None:
        """The group in registers; None when nothing is read again, or it has not one plain write at most."""
        writes = [offset for offset, access in group.members if access.write]
        reads = [offset for offset, access in group.members if not access.write and not access.conditional]
        if len(writes) > 1 or not reads or not any(group.strides):
            return None
        store: int | None = None
        if writes:
            at = [
                k for k, n in enumerate(loop.body) if isinstance(n, Assign) and n.target.variable == group.variable.name
            ]
            at = [k for k in at if group.offset(_target(loop.body[k]).subscripts, loop) is not None]
            node = loop.body[at[0]] if at else None
            if not isinstance(node, Assign) or node.reduction is not None or node.scan is not None or node.atomic:
                return None
            store = at[0]
        leading = writes[0] if writes else max(reads)
        near = [leading - offset for offset in reads if 0 < leading - offset <= FARTHEST]
        if not near:
            return None
        variable = group.variable
        moving = variable.lanes > 1 or (lanes is not None and lanes.variable in subscript_variables(group.line))
        if lanes is not None and not moving and store is not None:
            return None  # one element for all lanes
        width = lanes.width if lanes is not None and moving else 1
        registers = tuple(
            Variable(name=fresh(f"{variable.name}_ago{d}", self.taken), dtype=variable.dtype, shape=(), scope="register", lanes=width)
            for d in range(max(near) + 1)
        )  # fmt: skip
        least = 1 + max(min(d for d in near if d >= first) - first for first in range(1, max(near) + 1))
        return _Carry(group, leading, max(near), store, least, registers)


def _writes_on(loop: For) -> bool:
    """Whether there is an assignment, no update, to elements that move with the loop: most innermost loops are sums, and that is quick to see."""
    return any(
        isinstance(n, Assign) and n.reduction is None and loop.variable in subscript_variables(n.target.subscripts)
        for n in loop.body
    )


def _with_registers(node: Node, position: int, carries: Sequence[_Carry], loop: For) -> list[Node]:
    """A child of the loop that reads registers; what it stores of a group goes into a register first."""

    def read(old: Read) -> Expr:
        for carry in carries:
            new = carry.read(old, loop, position)
            if new is not old:
                return new
        return old

    (changed,) = map_places((node,), place=lambda place: place, read=read)
    made = next((carry.registers[0] for carry in carries if carry.store == position), None)
    if made is None or not isinstance(changed, Assign):
        return [changed]
    kept = Assign(target=Place(made.name, ()), value=changed.value)
    return [kept, replace(changed, value=Read(made.name, (), made.dtype))]


def _target(node: Node) -> Place:
    assert isinstance(node, Assign), "internal: only an assignment has a target"
    return node.target


def _load(register: Variable, group: _Group, iteration: Affine) -> Assign:
    value = Read(group.variable.name, group.place(iteration), register.dtype)
    return Assign(target=Place(register.name, ()), value=value)


def _move(target: Place, source: Variable) -> Assign:
    return Assign(target=target, value=Read(source.name, (), source.dtype))
