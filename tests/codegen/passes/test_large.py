"""Loops whose stores are marked for memory beyond the caches."""

from __future__ import annotations

from polyml.codegen.loops import Assign, Function
from polyml.codegen.passes.large import streaming
from polyml.codegen.rewrite import walk_nodes
from polyml.dtypes import f64
from tests.codegen.llvm.support import const, loop, store, variable


def test_stores_into_the_arrays_stream_and_reductions_do_not() -> None:
    nodes = (
        store("y", ["i"], const(0.0, f64)),
        store("y", ["i"], const(1.0, f64), reduction="sum"),
        store("z", ["i"], const(2.0, f64)),
    )
    arguments = (variable("y", f64, 9), variable("z", f64, 9))
    body = (loop("i", 0, 9, *nodes),)
    function = Function(name="nest", arguments=arguments, written=frozenset("yz"), sizes=(), body=body)
    marked = [n.streaming for n in walk_nodes(streaming(function, {"y"}).body) if isinstance(n, Assign)]
    assert marked == [True, False, False]
