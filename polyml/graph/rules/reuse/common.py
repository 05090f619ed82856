"""Common-subexpression elimination: equations that say the same are computed once."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyml.expressions import Numbered, Read, Subscript, reads_of, substitute, variables_in
from polyml.graph.edit import protected_names, rename_uses
from polyml.graph.ir import Equation, Graph, Loop, Op, Tensor
from polyml.graph.traverse import all_ops, is_cheap
from polyml.renewed import renewed
from polyml.sets.affine import Affine, affine
from polyml.sets.boxes import box

__all__ = ["share_equal"]

_Key = tuple[object, ...]


def share_equal(graph: Graph) -> Graph:
    """The graph with later equal equations replaced by the first.

    A tensor that an update or a loop may overwrite in place is left alone: sharing it would cost a copy. One that is returned becomes a copy of the first.
    """
    overwritten = set[str]()
    for op in all_ops(graph.ops):
        if isinstance(op, Equation) and op.base is not None:
            overwritten.add(op.base.name)
        elif isinstance(op, Loop):
            overwritten |= {c.initial.name for c in op.carried} | {c.inner.name for c in op.carried}
    ops = _share(graph.ops, _Seen(), overwritten, protected_names(graph))
    return graph if ops is graph.ops else replace(graph, ops=ops)


class _Seen:
    """Equations by what they say, the first of each. Most differ in what they read, in which order: the others' bodies are compared only where that is the same."""

    def __init__(self, around: _Seen | None = None) -> None:
        # Exactly: 0.0 and -0.0 are not the same.
        self._numbered: Numbered = Numbered(exactly=True) if around is None else around._numbered
        self._alone: dict[_Key, Equation] = {} if around is None else dict(around._alone)
        self._several: dict[_Key, dict[_Key, Tensor]] = {}
        if around is not None:
            self._several = {rough: dict(first) for rough, first in around._several.items()}

    def first(self, equation: Equation) -> Tensor:
        """The result of the first equation that says the same, this one included."""
        rough = _rough_key(equation)
        alone = self._alone.setdefault(rough, equation)
        if alone is equation:
            return equation.result
        if rough not in self._several:
            self._several[rough] = {_key(alone, self._numbered): alone.result}
        return self._several[rough].setdefault(_key(equation, self._numbered), equation.result)


def _share(ops: tuple[Op, ...], outer: _Seen, overwritten: set[str], protected: set[str]) -> tuple[Op, ...]:
    seen = _Seen(outer)
    kept: list[Op] = []
    names: dict[str, Tensor] = {}
    for op in ops:
        if names:
            (op,) = rename_uses((op,), names)
        match op:
            case Loop():
                body = _share(op.body, seen, overwritten, protected)
                op = op if body is op.body else replace(op, body=body)
            case Equation() if op.result.name not in overwritten:
                first = seen.first(op)
                if first is not op.result:
                    if op.result.name not in protected:
                        names[op.result.name] = first
                        continue
                    op = _copy(op, first)
        kept.append(op)
    return renewed(ops, kept)


def _rough_key(equation: Equation) -> _Key:
    """Equal for equations that `_key` is equal for, and soon made."""
    reads = tuple(read.tensor for read in reads_of(equation.body))
    return equation.result.dtype, equation.result.shape, equation.reduce, len(equation.indices), reads


def _key(equation: Equation, numbered: Numbered) -> _Key:
    """Equal for equations that differ in names of indices and results only."""
    plain = {name: affine(f"i{d}_") for d, name in enumerate(equation.indices)}

    def subscript(s: Subscript) -> object:
        return s.substitute(plain) if isinstance(s, Affine) else numbered(substitute(s, plain))

    return (
        equation.result.dtype,
        equation.result.shape,
        tuple(map(subscript, equation.target)),
        numbered(substitute(equation.body, plain)),
        equation.reduce,
        len(equation.reduced),
        equation.accumulate,
        equation.base.name if equation.base is not None else None,
        _text(equation.domain),
        _text(equation.instances) if equation.instances is not None else None,
        equation.padded,
        equation.only_if.name if equation.only_if is not None else None,
    )


def _text(domain: isl.Set) -> str:
    """The set's text without names of the tuple and its dimensions; equal text is equal sets (not the other way round)."""
    bare = domain.set_tuple_name("E")
    for position in range(domain.dim(isl.dim_type.set)):
        bare = bare.set_dim_name(isl.dim_type.set, position, f"i{position}_")
    return str(bare)


def _copy(equation: Equation, first: Tensor) -> Equation:
    """`result = first`, unless computing it again costs no more than copying."""
    if equation.reduce is None and is_cheap(equation.body):
        return equation
    elements = tuple(f"e{d}" for d in range(len(first.shape)))
    extents = dict(zip(elements, first.shape, strict=True))
    domain = box(equation.result.name, elements, extents, sorted(variables_in(first.shape)))
    places = tuple(affine(e) for e in elements)
    return Equation(
        result=equation.result,
        indices=elements,
        domain=domain,
        target=places,
        body=Read(first.name, places, first.dtype),
        span=equation.span,
    )
