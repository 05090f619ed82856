"""Scratch arrays of complex numbers are two arrays, of the real and of the imaginary parts.

What is computed with are parts (einsum_frontend/complex_parts.py). Where both lie between each other in memory, each vector that is read is taken apart by shuffles, and each that is written is put together for the next step to take apart. Arguments lie so and have to; scratch memory is nobody's business.
The parts are arrays of plain floats, which all other passes know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Place, Variable
from polyml.codegen.rewrite import expressions, nodes_of, uses, walk_nodes, with_body
from polyml.expressions import Apply, Expr, Read, Subscript, reads_of, walk
from polyml.new_names import fresh
from polyml.operation_weights import weight_of
from polyml.records import dataclass, replace
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["store_parts_apart"]

DEAR = 2
"""Vector instructions of an operation that both parts may have in common, at most: each of them computes it, where one assignment of both did so once."""


def store_parts_apart(function: Function) -> Function:
    """The function with such arrays.

    Rewrite:
        local c128 z[2, N]; z[i, n] = complex(x, y); .. real(z[i, n]) ..; a[n] = z[0, n];
        -> local f64 z[2, N]; local f64 z_imag[2, N]; z[i, n] = x; z_imag[i, n] = y; .. z[i, n] ..; a[n] = complex(z[0, n], z_imag[0, n]);
    """
    allocated = [node.variable for node in nodes_of(function) if isinstance(node, Allocate)]
    arrays = {v.name: v for v in allocated if v.scope == "local" and v.dtype.is_complex}
    if not arrays:
        return function
    whole = _whole(function.body)
    apart = [variable for name, variable in arrays.items() if name not in whole]
    if not apart:
        return function
    taken = {v.name for v in (*function.arguments, *allocated)} | set(function.sizes)
    work = _Apart({v.name: v for v in apart}, {v.name: fresh(f"{v.name}_imag", taken) for v in apart}, taken)
    return replace(function, body=work.nodes(function.body))


def _whole(nodes: Iterable[Node]) -> set[str]:
    """The arrays that something uses otherwise than by parts, by copies of elements, or by assignments of two parts that have little in common."""
    found = set[str]()
    for node in nodes:
        match node:
            case Assign(scan=None, across=False) if node.reduction or not isinstance(node.value, Read):
                found |= set[str]().union(*map(_read_whole, expressions(node)))
                found |= set() if not node.reduction and _is_of_parts(node.value) else {node.target.variable}
            case Assign(scan=None, across=False):
                found |= set[str]().union(*map(_read_whole, expressions(node)[1:]))
            case If():
                found |= _read_whole(node.condition) | _whole((*node.then, *node.otherwise))
            case For(kind="transpose" | "shuffle"):
                found |= {use.variable for inner in walk_nodes(node.body) for use in uses(inner)}
            case For() | Allocate() | Block():
                found |= _whole(node.body)
            case _:
                found |= {use.variable for use in uses(node)}
    return found


def _read_whole(expr: Expr) -> set[str]:
    """The arrays of which it reads complex numbers as such."""
    nodes = [*walk(expr)]
    parts = {id(node.args[0]) for node in nodes if isinstance(node, Apply) and node.op in ("real", "imag")}
    return {node.tensor for node in nodes if isinstance(node, Read) and id(node) not in parts}


def _is_of_parts(value: Expr) -> bool:
    if not isinstance(value, Apply) or value.op != "complex":
        return False
    dear = [{n for n in walk(part) if isinstance(n, Apply) and weight_of(n) > DEAR} for part in value.args]
    return dear[0].isdisjoint(dear[1])


@dataclass(frozen=True, slots=True)
class _Apart:
    """arrays: that are taken apart. imaginary: by the array, the name of its other half. taken: names."""

    arrays: Mapping[str, Variable]
    imaginary: Mapping[str, str]
    taken: set[str]

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return renewed(nodes, (made for node in nodes for made in self.node(node)))

    def node(self, node: Node) -> tuple[Node, ...]:
        match node:
            case Assign() if node.target.variable in self.arrays:
                return self.parts(node)
            case Assign():
                return (replace(node, target=self.place(node.target), value=self.value(node.value)),)
            case If():
                return (with_body(replace(node, condition=self.value(node.condition)), self.nodes),)
            case Allocate(variable=variable) if variable.name in self.arrays:
                real = replace(variable, dtype=variable.dtype.part)
                other = replace(real, name=self.imaginary[variable.name])
                inner = Allocate(variable=other, body=self.nodes(node.body))
                return (Allocate(variable=real, body=(inner,)),)
            case _:
                return (with_body(node, self.nodes),)

    def parts(self, node: Assign) -> tuple[Node, ...]:
        """Both parts, each assigned; the real one by way of a register where the imaginary one still asks for what it was."""
        name = node.target.variable
        first, second = self.place(node.target), Place(self.imaginary[name], self.place(node.target).subscripts)
        real, imag = (self.part(node.value, op) for op in ("real", "imag"))
        if name not in {read.tensor for read in reads_of(imag)}:
            return Assign(target=first, value=real), Assign(target=second, value=imag)
        register = Variable(name=fresh(f"{name}_real", self.taken), dtype=real.dtype, shape=(), scope="register")
        body = (
            Assign(target=Place(register.name, ()), value=real),
            Assign(target=second, value=imag),
            Assign(target=first, value=Read(register.name, (), real.dtype)),
        )
        return (Allocate(variable=register, body=body),)

    def part(self, value: Expr, op: str) -> Expr:
        """The real or the imaginary part of what is assigned."""
        if isinstance(value, Apply):
            return self.value(value.args[0 if op == "real" else 1])
        assert isinstance(value, Read), "internal: a complex number that is neither two parts nor an element"
        return (
            self.read(value, op) if value.tensor in self.arrays else Apply(op, (self.value(value),), value.dtype.part)
        )

    def value(self, value: Expr) -> Expr:
        """The expression with reads of parts."""
        match value:
            case Apply(op="real" | "imag" as op, args=(Read() as read,)) if read.tensor in self.arrays:
                return self.read(read, op)
            case Apply():
                return value.with_args(map(self.value, value.args))
            case Read() if value.tensor in self.arrays:
                return Apply("complex", (self.read(value, "real"), self.read(value, "imag")), value.dtype)
            case Read():
                return value.at(self.subscripts(value.subscripts))
            case _:
                return value

    def read(self, read: Read, op: str) -> Read:
        name = read.tensor if op == "real" else self.imaginary[read.tensor]
        return Read(name, self.subscripts(read.subscripts), read.dtype.part)

    def place(self, place: Place) -> Place:
        return place.at(self.subscripts(place.subscripts))

    def subscripts(self, subscripts: tuple[Subscript, ...]) -> tuple[Subscript, ...]:
        """What is computed there may read parts as well."""
        return renewed(subscripts, (s if isinstance(s, Affine) else self.value(s) for s in subscripts))
