"""Few sums in registers as several chains each: an addition waits for the one before it, and a tile of a row or two has no others to fill the time.

Rests of register tiles (single rows, single vectors, both) have one to seven sums. Unrolled, their copies go to registers of their own in turns, so that as many additions are on their way as the machine
finishes until the first is done, and reading the operands is what takes time again. The chains are added up when the loop is over, so sums are in another order, and no longer ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from polyml.codegen.loops import Allocate, Assign, For, Function, Node, Place, Prefetch, Variable
from polyml.codegen.passes.unrolling.jam import names_in
from polyml.codegen.ranges import Ranges, outside
from polyml.codegen.rewrite import have_no_bodies, nodes_of, with_body
from polyml.expressions import Const, Read, reads_of
from polyml.new_names import fresh
from polyml.records import dataclass
from polyml.renewed import renewed

__all__ = ["IN_FLIGHT", "chain_sums"]

IN_FLIGHT = 8
"""Sums that do not wait for each other: an addition takes four cycles, and two begin in each."""

LEAST = 4
"""Iterations of the unrolled loop from which adding up the chains is little beside them."""


def chain_sums(function: Function, *, vector_registers: int = 32) -> Function:
    """The function with the few sums of its innermost loops in several chains, which take no more than half of the registers.

    Rewrite:
        for (k = 0; k < n; k += 2) { s += x[k]; s += x[k + 1]; }
        -> t = 0; for (k = 0; k < n; k += 2) { s += x[k]; t += x[k + 1]; } s += t;
    """
    if not any(isinstance(node, Allocate) and _has_lanes(node.variable) for node in nodes_of(function)):
        return function
    taken = names_in(function)
    body = _Chains({}, taken, vector_registers // 2).body(function.body, outside(function))
    return function if body is function.body else replace(function, body=body)


def _has_lanes(variable: Variable) -> bool:
    return variable.scope == "register" and variable.lanes > 1


@dataclass(frozen=True, slots=True)
class _Chains:
    """variables: those allocated around the node that is looked at, by name. taken: names in use. room: registers for chains; with more LLVM keeps some in memory."""

    variables: dict[str, Variable]
    taken: set[str]
    room: int

    def body(self, nodes: tuple[Node, ...], ranges: Ranges) -> tuple[Node, ...]:
        if have_no_bodies(nodes):
            return nodes
        return renewed(nodes, (self.node(node, ranges) for node in nodes))

    def node(self, node: Node, ranges: Ranges) -> Node:
        if isinstance(node, Allocate):
            # Parts of a loop have variables of the same names and other lanes.
            around, name = self.variables.get(node.variable.name), node.variable.name
            self.variables[name] = node.variable
            changed = with_body(node, lambda body: self.body(body, ranges))
            if around is None:
                del self.variables[name]
            else:
                self.variables[name] = around
            return changed
        if not isinstance(node, For):
            return with_body(node, lambda body: self.body(body, ranges))
        copies = self.copies(node)
        if copies < 2 or ((trips := ranges.highest(node.upper - node.lower)) is not None and trips < LEAST * node.step):
            return with_body(node, lambda body: self.body(body, ranges.enter(node)))
        sums = list(dict.fromkeys(n.target.variable for n in node.body if isinstance(n, Assign)))
        fitting = [c for c in range(2, copies + 1) if copies % c == 0 and c * len(sums) <= self.room]
        enough = [c for c in fitting if c * len(sums) >= IN_FLIGHT]
        return self.chained(node, sums, min(enough, default=fitting[-1])) if fitting else node

    def copies(self, loop: For) -> int:
        """How often the loop adds to each of its sums, which are few; 0 where it is no such loop."""
        terms = [node for node in loop.body if isinstance(node, Assign)]
        if loop.kind != "sequential" or not all(isinstance(node, Assign | Prefetch) for node in loop.body):
            return 0
        plain = all(n.reduction == "sum" and not n.across and n.scan is None and not n.target.subscripts for n in terms)
        sums = Counter(node.target.variable for node in terms)
        if not plain or not 0 < len(sums) < IN_FLIGHT or len(set(sums.values())) > 1:
            return 0
        known = all((own := self.variables.get(name)) and _has_lanes(own) and own.dtype.is_float for name in sums)
        read = {read.tensor for node in terms for read in reads_of(node.value)}
        return 0 if not known or read & set(sums) else next(iter(sums.values()))

    def chained(self, loop: For, sums: list[str], chains: int) -> Node:
        """The loop with so many registers for each of its sums, which are zeros at first and added up at the end."""
        names = {name: [name, *(fresh(f"{name}_chain", self.taken) for _ in range(1, chains))] for name in sums}
        turns: Counter[str] = Counter()
        body: list[Node] = []
        for node in loop.body:
            if isinstance(node, Assign):
                name = node.target.variable
                node = replace(node, target=Place(names[name][turns[name] % chains], ()))
                turns[name] += 1
            body.append(node)
        zeros: list[Node] = []
        adds: list[Node] = []
        for chain in range(1, chains):
            for name, own in names.items():
                dtype = self.variables[name].dtype
                zeros.append(Assign(target=Place(own[chain], ()), value=Const(0.0, dtype)))
                adds.append(Assign(target=Place(name, ()), value=Read(own[chain], (), dtype), reduction="sum"))
        made: tuple[Node, ...] = (*zeros, replace(loop, body=tuple(body)), *adds)
        for name, own in names.items():
            for other in own[1:]:
                made = (Allocate(variable=replace(self.variables[name], name=other), body=made),)
        return made[0]
