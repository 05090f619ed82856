"""Flags that say whether all that arrays hold are numbers, kept by those who write them, for loops of minima and maxima that take each element many times.

Where the loops around candidates `x + y` write what these are made of (optimal parenthesizations, foldings), there is no place ahead of them for a look at it (numbers_ahead.py), and inside of tiles a look costs
as much as it saves. But each element is written once and taken as often as there are rows or columns: whoever writes one looks at it.

    for (i ..) { for (j ..) for (k ..) t = max(t, x[i, k] + x[k, j]); ..; x[i, j] = .. }
    -> below = true; for (i ..) for (j ..) below &= x[i, j] < inf                            (of an argument: what it holds already)
       for (i ..) { for (j ..) for (k .., where below: no NaN) t = max(t, x[i, k] + x[k, j]); ..; x[i, j] = ..; if (!(x[i, j] < inf)) below = false }

A flag is only ever cleared, by whichever thread; those who need an element wait for its writer anyway. It may be down for elements that nobody takes (the other half of a matrix), so the loop runs in the
hope for numbers then (`For.hopes`, extrema.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from polyml.codegen.llvm.reductions.operands import Asked, Bound, asked_by
from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Place, UpdateArgument, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.rewrite import variables_by_name, with_body
from polyml.dtypes import boolean
from polyml.expressions import Apply, Const, Expr, Read
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.sets.affine import affine

__all__ = ["keep_numbers"]

LEAST = 8
"""Minima and maxima in an iteration, at least: those of register tiles, where the time is. Others run in the hope for numbers, without a third copy."""

_ONE_BY_ONE = ("sequential", "parallel", "pipelined", "stage")


def keep_numbers(function: Function) -> Function:
    """The function with flags for arrays that it writes, and loops that name them; the same where there are none."""
    variables = variables_by_name(function)
    search = _Search(variables)
    search.walk(function.body, 0, single=True)
    asked = search.served()
    if not asked:
        return function
    bounds: dict[str, dict[Bound, None]] = {}
    for _, arrays in asked:
        for array, bound in arrays:
            bounds.setdefault(array, {})[bound] = None
    taken = names_in(function)
    flags = {array: fresh(f"{array}_numbers", taken) for array in bounds}
    loops = {id(loop): tuple(dict.fromkeys(flags[array] for array, _ in arrays)) for loop, arrays in asked}
    lanes = max(
        variables[node.target.variable].lanes for loop, _ in asked for node in loop.body if isinstance(node, Assign)
    )
    body: tuple[Node, ...] = _Insertion(variables, flags, bounds, loops).body(function.body)
    for argument in function.arguments:
        if argument.name in flags:
            body = (_look(argument, bounds[argument.name], flags[argument.name], lanes, taken), *body)
    body = (*(Assign(target=Place(flag, ()), value=Const(True, boolean)) for flag in flags.values()), *body)
    for flag in flags.values():
        body = (Allocate(variable=Variable(name=flag, dtype=boolean, shape=(), scope="local"), body=body),)
    return replace(function, body=body)


@dataclass(slots=True)
class _Search:
    """written: of each array in memory, in how many loops the deepest of its writers is. copied: arrays that others are copied to, by these. unfit: arrays with writers that are no assignment of one element. found: loops of minima and maxima, what they ask for, and
    in how many loops their bodies are."""

    variables: Mapping[str, Variable]
    written: dict[str, int] = field(default_factory=dict)
    copied: dict[str, set[str]] = field(default_factory=dict)
    unfit: set[str] = field(default_factory=set)
    found: list[tuple[For, list[Asked], int]] = field(default_factory=list)

    def walk(self, nodes: Sequence[Node], depth: int, *, single: bool) -> None:
        for node in nodes:
            match node:
                case For():
                    asked = [] if node.if_numbers or len(node.body) < LEAST else asked_by(node, self.variables)
                    if asked:
                        self.found.append((node, asked, depth + 1))
                    else:
                        self.walk(node.body, depth + 1, single=single and node.kind in _ONE_BY_ONE)
                case If():
                    self.walk((*node.then, *node.otherwise), depth, single=single)
                case Assign(target=Place(array), value=Read(tensor=source), reduction=None, scan=None) if (
                    source != array
                ):
                    self.copied.setdefault(array, set()).add(source)
                case Assign():
                    array = node.target.variable
                    self.written[array] = max(depth, self.written.get(array, 0))
                    self.unfit |= set() if single and not node.streaming else {array}
                case UpdateArgument():
                    self.unfit |= {node.best.variable, node.argument.variable}
                case Allocate() | Block():
                    self.walk(node.body, depth, single=single)
                case _:
                    pass

    def served(self) -> list[tuple[For, list[tuple[str, Bound]]]]:
        """The loops of which all elements come from arrays that are written here, one element at a time and in fewer loops, or copied from such arrays; these arrays, and what their elements have to fulfil."""
        asked = (
            (loop, [(array, bound) for read, bound in asked for array in sorted(self.sources(read.tensor))], depth)
            for loop, asked, depth in self.found
        )
        return [
            (loop, arrays)
            for loop, arrays, depth in asked
            if all(self.written.get(array, depth) < depth and array not in self.unfit for array, _ in arrays)
        ]

    def sources(self, array: str) -> set[str]:
        """The arrays that an array's elements are copied from, or their sources; itself where something else is written to it, or nothing."""
        found, left = set[str](), [array]
        seen = {array}
        while left:
            name = left.pop()
            copied = self.copied.get(name, set()) if name not in self.written else set()
            found |= set() if copied else {name}
            left += copied - seen
            seen |= copied
        return found


@dataclass(frozen=True, slots=True)
class _Insertion:
    """flags: of arrays. loops: the flags that loops ask for, by their identities."""

    variables: Mapping[str, Variable]
    flags: Mapping[str, str]
    bounds: Mapping[str, Mapping[Bound, None]]
    loops: Mapping[int, tuple[str, ...]]

    def body(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes, and behind the last assignment of each element a look at it."""
        made: list[Node] = []
        for at, node in enumerate(nodes):
            if isinstance(node, For) and id(node) in self.loops:
                made.append(replace(node, if_numbers=self.loops[id(node)], hopes=True))
                continue
            made.append(with_body(node, self.body))
            if isinstance(node, Assign) and node.target.variable in self.flags:
                again = any(isinstance(later, Assign) and later.target == node.target for later in nodes[at + 1 :])
                made += [] if again else [self.look(node.target)]
        return tuple(made)

    def look(self, place: Place) -> Node:
        read = Read(place.variable, place.subscripts, self.variables[place.variable].dtype)
        clear = Assign(target=Place(self.flags[place.variable], ()), value=Const(False, boolean))
        return If(condition=Apply("not", (_holds(read, self.bounds[place.variable]),), boolean), then=(clear,))


def _holds(read: Read, bounds: Mapping[Bound, None]) -> Expr:
    """That the element fulfils all."""
    first, *others = (Apply(op, (read, Const(limit, read.dtype)), boolean) for op, limit in bounds)
    for other in others:
        first = Apply("and", (first, other), boolean)
    return first


def _look(array: Variable, bounds: Mapping[Bound, None], flag: str, lanes: int, taken: set[str]) -> Node:
    """Loops over all elements of the array that clear the flag."""
    names = [fresh(f"{array.name}_{dimension}", taken) for dimension in range(len(array.shape))]
    read = Read(array.name, tuple(affine(name) for name in names), array.dtype)
    node: Node = Assign(target=Place(flag, ()), value=_holds(read, bounds), reduction="all")
    for name, extent in reversed([*zip(names, array.shape, strict=True)]):
        along = name == names[-1] and lanes > 1 and array.memory_strides[-1] == 1
        node = For(
            variable=name,
            lower=affine(0),
            upper=extent,
            kind="vector" if along else "sequential",
            step=lanes if along else 1,
            width=lanes if along else 1,
            masked=along,
            body=(node,),
        )
    return node
