"""The graph rewritten for a machine: what of the caller's options, of the target and of the inputs the rules are told."""

from __future__ import annotations

from collections.abc import Mapping, Set

from polyml.graph.ir import Graph
from polyml.graph.rewrite import rewrite
from polyml.graph.rules.table import RewriteOptions
from polyml.options import Options

__all__ = ["may_arrange", "rewrite_for"]


def rewrite_for(
    graph: Graph, options: Options, strides: Mapping[str, tuple[int, ...]], *, constants: Set[str] = frozenset()
) -> Graph:
    """The graph in the form that suits the machine. strides: as of `lower_region`; constants: names of inputs that never change."""
    machine, free = options.machine, may_arrange(options)
    known = RewriteOptions(
        precise=options.precise,
        l1_bytes=machine.l1_bytes,
        l2_bytes=machine.l2_bytes,
        vector_bytes=machine.vector_bytes if free else 0,
        vector_registers=machine.vector_registers,
        split_vectors=machine.split_vectors,
        dot_bf16=machine.dot_bf16 if free else 0.0,
        dot_i16=machine.dot_i16 if free else 0.0,
        dot_i8=machine.dot_i8 if free else 0.0,
        shared=options.parallel and (options.threads or machine.cores) > 1,
        strided=frozenset(name for name, steps in strides.items() if steps and steps[-1] != 1),
        orders=tuple((name, _order(steps)) for name, steps in strides.items()),
        constants=frozenset(constants),
    )
    return rewrite(graph, known)


def _order(steps: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions in the order of memory; none where elements do not lie side by side along one of them, or some are in several places."""
    order = sorted(range(len(steps)), key=lambda d: -abs(steps[d]))
    return tuple(order) if steps and 0 not in steps and steps[order[-1]] == 1 else ()


def may_arrange(options: Options) -> bool:
    """Whether the loops are ours to choose, and lanes are what they are chosen for."""
    asked = options.tile_sizes is not None or options.register_tile is not None or options.costs is not None
    return options.vectorize and options.scheduler == "ilp" and not asked and not options.machine.is_cuda
