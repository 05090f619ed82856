"""Programs whose statements only count: every instance adds one to an element of its own, through the same schedule, loops, kernels and text as the program's. So what runs twice, or not at all, shows,
whatever the values; and the subscripts of the counters are the instances as functions of the loops, which isl can decide on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import islpy as isl
import numpy as np
import pytest

import polyml.codegen.generate as generator
import polyml.compiler.gpu
import polyml.compiler.loops
from polyml.codegen.loops import Allocate, Assign, Block, For, Function, If, Node, Place, UpdateArgument, Variable
from polyml.codegen.rewrite import variables_of, with_body
from polyml.dtypes import i32
from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.schedule.schedule import Schedule
from polyml.scop.scop import Scop, Statement
from polyml.sets.affine import Affine, affine, operands
from polyml.sets.from_isl import constraints_of
from polyml.sets.spaces import parameters_text

__all__ = ["Box", "boxes_of", "count_instances", "coverage_faults", "expected_counts"]

PREFIX = "count_"


@dataclass(frozen=True, slots=True)
class Box:
    """What a counter is for: a statement's domain, and the box around it (of symbolic sizes: none)."""

    domain: isl.Set
    low: tuple[int, ...]
    shape: tuple[int, ...]


def boxes_of(scop: Scop) -> dict[str, Box]:
    """Per statement."""
    return {name: box_of(scop, statement) for name, statement in scop.statements.items()}


def box_of(scop: Scop, statement: Statement) -> Box:
    domain, dimensions = statement.domain.intersect_params(scop.context), range(len(statement.indices))
    if scop.sizes or domain.is_empty():
        return Box(domain, tuple(0 for _ in dimensions), tuple(1 for _ in dimensions))
    low = [domain.dim_min_val(k).to_python() for k in dimensions]
    high = [domain.dim_max_val(k).to_python() for k in dimensions]
    return Box(domain, tuple(low), tuple(h - l + 1 for l, h in zip(low, high, strict=True)))


def expected_counts(box: Box) -> np.ndarray:
    """1 for each instance of the domain."""
    names = [f"i{k}" for k in range(len(box.low))]
    along = (np.arange(low, low + extent) for low, extent in zip(box.low, box.shape, strict=True))
    points: Any = dict(zip(names, np.meshgrid(*along, indexing="ij"), strict=True))
    counts = np.zeros(box.shape, np.int32)
    for piece in box.domain.compute_divs().get_basic_sets():
        inside = np.ones(box.shape, bool)
        for constraint in constraints_of(piece, names):
            value = constraint.value.evaluate(points)
            inside &= value == 0 if constraint.equality else value >= 0
        counts |= inside
    return counts


def count_instances(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Box]]:
    """From here on loops are generated that count and do nothing else. *Returns* the counters per region, as they come to be known."""
    known: dict[str, dict[str, Box]] = {}

    def assignments(self: Any, statement: Statement, variant: Any, scope: Any) -> tuple[Node, ...]:
        box = box_of(self.schedule.scop, statement)
        values = {index: value.substitute(scope.iterators) for index, value in variant.indices.items()}
        places = tuple(values[index] - low for index, low in zip(statement.indices, box.low, strict=True))
        return (Assign(target=Place(PREFIX + statement.name, places), value=Const(1, i32), reduction="sum"),)

    original = generator.generate

    def generate(schedule: Schedule, *, name: str) -> Function:
        function = original(schedule, name=name)
        known[name] = boxes = boxes_of(schedule.scop)
        counters = tuple(
            Variable(name=PREFIX + s, dtype=i32, shape=tuple(map(affine, box.shape)), scope="global")
            for s, box in boxes.items()
        )
        return replace(
            function, arguments=counters, written=frozenset(v.name for v in counters),
            body=_without_scratch(function.body),
        )  # fmt: skip

    monkeypatch.setattr(generator._Builder, "assignments", assignments)
    monkeypatch.setattr(polyml.compiler.loops, "generate", generate)
    monkeypatch.setattr(polyml.compiler.gpu, "generate", generate)
    return known


def _without_scratch(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Nothing touches it."""
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, Allocate):
            made += _without_scratch(node.body)
        else:
            made.append(with_body(node, _without_scratch))
    return tuple(made)


# -- by isl -----------------------------------------------------------------------------------------------------------------------


def coverage_faults(function: Function, boxes: Mapping[str, Box]) -> list[str]:
    """What isl finds wrong with counting loops: instances that are run twice, never, or that there are none of; empty when the iterations of all loops that run a statement are one to one
    with its instances. Of two versions that the host chooses from by its sizes, the first one is looked at, whose schedule is the region's."""
    body, head = function.body, parameters_text(function.sizes)
    while (
        len(body) == 1
        and isinstance(body[0], If)
        and body[0].otherwise
        and variables_of(body[0].condition) <= {*function.sizes}
    ):
        body = body[0].then
    maps: dict[str, list[isl.Map]] = {name: [] for name in boxes}
    for target, loops, conditions in _counters(body, (), ()):
        names = [f"l{k}" for k in range(len(loops))]
        values = {loop.variable: affine(name) for loop, name in zip(loops, names, strict=True)}
        where = [text for loop in loops for text in _bounds(loop, values)]
        where += [_text(condition, values) for condition in conditions]
        box = boxes[target.variable.removeprefix(PREFIX)]
        assert all(isinstance(s, Affine) for s in target.subscripts)
        to = [(s.substitute(values) + low).isl_text() for s, low in zip(target.subscripts, box.low, strict=True)]
        name = box.domain.get_tuple_name()
        made = isl.Map(f"{head}{{ [{', '.join(names)}] -> {name}[{', '.join(to)}] : {' and '.join(where) or 'true'} }}")
        maps[target.variable.removeprefix(PREFIX)].append(made)
    faults = []
    for name, found in maps.items():
        domain, reached = boxes[name].domain, isl.Set.empty(boxes[name].domain.get_space())
        for whole in found:
            made = whole.intersect_params(domain.params())
            if not made.is_injective():
                faults.append(f"{name}: an instance is run twice")
            image = made.range()
            if not image.is_disjoint(reached):
                faults.append(f"{name}: an instance is run in two places: {image.intersect(reached).sample_point()}")
            reached = reached.union(image)
        if not domain.is_subset(reached):
            faults.append(f"{name}: an instance is never run: {domain.subtract(reached).sample_point()}")
        if not reached.is_subset(domain):
            faults.append(f"{name}: there is no instance {reached.subtract(domain).sample_point()}")
    return faults


def _counters(
    nodes: Sequence[Node], loops: tuple[For, ...], conditions: tuple[Expr, ...]
) -> Iterator[tuple[Place, tuple[For, ...], tuple[Expr, ...]]]:
    for node in nodes:
        match node:
            case Assign():
                yield node.target, loops, conditions
            case For():
                yield from _counters(node.body, (*loops, node), conditions)
            case If():
                yield from _counters(node.then, loops, (*conditions, node.condition))
                yield from _counters(
                    node.otherwise, loops, (*conditions, Apply("not", (node.condition,), node.condition.dtype))
                )
            case Allocate() | Block():
                yield from _counters(node.body, loops, conditions)
            case UpdateArgument():
                raise AssertionError("counters are not updated like this")


def _bounds(loop: For, values: Mapping[str, Affine]) -> list[str]:
    name = values[loop.variable].isl_text()
    lower, upper = loop.lower.substitute(values), loop.upper.substitute(values)
    made = [f"{name} >= {o.isl_text()}" for o in operands(lower, "max")]
    made += [f"{name} < {o.isl_text()}" for o in operands(upper, "min")]
    if loop.step > 1:
        made.append(f"({name} - ({lower.isl_text()})) mod {loop.step} = 0")
    return made


SYMBOLS = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _text(condition: Expr, values: Mapping[str, Affine]) -> str:
    match condition:
        case Apply(op="and" | "or" as op):
            return "(" + f" {op} ".join(_text(arg, values) for arg in condition.args) + ")"
        case Apply(op="not", args=(inner,)):
            return f"(not {_text(inner, values)})"
        case Apply(op=op) if op in SYMBOLS:
            left, right = (_text(arg, values) for arg in condition.args)
            return f"({left} {SYMBOLS[op]} {right})"
        case IndexValue():
            return condition.affine.substitute(values).isl_text()
        case Const():
            return str(condition.value).lower()
        case _:
            raise AssertionError(f"loops have no condition like {condition}")
