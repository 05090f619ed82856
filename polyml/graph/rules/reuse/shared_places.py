"""Places that are computed, and that several equations use, are computed once: `h[min(i64(sqrt(x[n]) * B), B - 1)] += v[n]` computes them where it adds, and its check did so before.

Each scatter goes element by element, and so do the roots and quotients in its subscript; a tensor of places is made in whole vectors. It takes a store and a load for each use, which what is cheap does not pay for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from polyml.expressions import Apply, Expr, Read, map_reads, reads_of, walk
from polyml.graph.builder.parts import fill
from polyml.graph.ir import Check, Equation, Graph, Loop, Op, Tensor
from polyml.graph.rules.reuse.ahead import Whole, over_a_tensor
from polyml.graph.traverse import all_ops, estimated_bytes, is_cheap, tensors_of
from polyml.new_names import fresh_name
from polyml.records import dataclass
from polyml.renewed import renewed
from polyml.sets.affine import Affine

__all__ = ["share_places"]


def share_places(graph: Graph) -> Graph:
    """The graph with such places in tensors of their own, once per block of ops."""
    flags = frozenset(op.flag.name for op in all_ops(graph.ops) if isinstance(op, Check))
    work = _Places(flags, frozenset(graph.sizes), tensors_of(graph))
    ops = work.block(graph.ops)
    return graph if ops is graph.ops else replace(graph, ops=ops)


@dataclass(frozen=True, slots=True)
class _Places:
    """flags: what checks ask for. sizes: of the graph."""

    flags: frozenset[str]
    sizes: frozenset[str]
    tensors: dict[str, Tensor]

    def block(self, ops: tuple[Op, ...]) -> tuple[Op, ...]:
        uses = Counter(use for op in ops if isinstance(op, Equation) for use in self.uses(op))
        made: dict[Apply, Tensor] = {}
        result: list[Op] = []
        for op in ops:
            if isinstance(op, Loop):
                body = self.block(op.body)
                op = op if body is op.body else replace(op, body=body)
            elif isinstance(op, Equation) and any(count > 1 for count in uses.values()):
                known = len(made)
                changed = self.changed(op, uses, made)
                result += [fill(tensor, use, op.span) for use, tensor in [*made.items()][known:]]
                op = changed
            result.append(op)
        return renewed(ops, result)

    def uses(self, equation: Equation) -> set[Apply]:
        """What may become a tensor, over whole tensors, each once."""
        nodes = (node for place in self.places(equation) for node in walk(place))
        return {whole.use for node in nodes if (whole := self.whole(node)) is not None}

    def places(self, equation: Equation) -> Iterator[Expr]:
        """Subscripts, and what a check compares."""
        yield from (s for s in equation.target if not isinstance(s, Affine))
        if equation.result.name in self.flags:
            yield equation.body
            return
        yield from (s for read in reads_of(equation.body) for s in read.subscripts if not isinstance(s, Affine))

    def whole(self, expr: Expr) -> Whole | None:
        """The expression over a whole tensor, where it is a number that is not cheap, and there are no more of these than one of the tensors that they are computed of has elements: places of pairs are not kept."""
        if not isinstance(expr, Apply) or not expr.dtype.is_integer or is_cheap(expr):
            return None
        whole = over_a_tensor(expr, self.tensors, self.sizes)
        sources = [self.tensors[read.tensor] for read in reads_of(expr)] if whole is not None else []
        most = max((estimated_bytes(t) // t.dtype.itemsize for t in sources), default=0)
        return whole if whole is not None and whole.elements <= most else None

    def changed(self, equation: Equation, uses: Counter[Apply], made: dict[Apply, Tensor]) -> Equation:
        """The equation with reads of tensors of places; those that are new are added to what is made."""

        def most(expr: Expr) -> int:
            return max((uses[w.use] for node in walk(expr) if (w := self.whole(node)) is not None), default=0)

        def replaced(expr: Expr) -> Expr:
            if not isinstance(expr, Apply):
                return expr
            whole = self.whole(expr)
            # What most equations have in common, and of that the largest part.
            if whole is None or not 1 < uses[whole.use] == most(expr):
                return expr.with_args(map(replaced, expr.args))
            tensor = made.get(whole.use)
            if tensor is None:
                name = fresh_name(f"{whole.source}_place", self.tensors)
                tensor = self.tensors[name] = Tensor(name, whole.use.dtype, whole.shape, whole.label)
                made[whole.use] = tensor
            return Read(tensor.name, whole.place, tensor.dtype)

        def gathered(read: Read) -> Read:
            return read.at(s if isinstance(s, Affine) else replaced(s) for s in read.subscripts)

        if equation.result.name in self.flags:
            body = replaced(equation.body)
        else:
            body = map_reads(equation.body, gathered)
        target = tuple(s if isinstance(s, Affine) else replaced(s) for s in equation.target)
        return (
            equation
            if body is equation.body and target == equation.target
            else replace(equation, body=body, target=target)
        )
