"""The rewriter: a table of rules that are applied in order until nothing changes, and one of rules that are applied once, after those.

Each rule takes a Graph and gives an equal one (the same object when it does not apply), so rules can be run, tested and printed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyml.graph.ir import Graph
from polyml.graph.rules.absorb import absorb_copies
from polyml.graph.rules.ahead import compute_once
from polyml.graph.rules.channels_apart import part_channels
from polyml.graph.rules.combine import combine_terms
from polyml.graph.rules.common import share_equal
from polyml.graph.rules.compared import compare_narrowly
from polyml.graph.rules.coupled import decouple
from polyml.graph.rules.dead import remove_dead
from polyml.graph.rules.factor import factor_sums
from polyml.graph.rules.hoist import hoist
from polyml.graph.rules.inline import inline_elementwise
from polyml.graph.rules.interleaved import fetch_interleaved
from polyml.graph.rules.laid_out import lay_out
from polyml.graph.rules.layout_costs import Machine
from polyml.graph.rules.levels_in_turn import turn_levels
from polyml.graph.rules.loops_of_sums import sum_loops
from polyml.graph.rules.masked import skip_masked
from polyml.graph.rules.narrow import narrow
from polyml.graph.rules.nested import nest_sums
from polyml.graph.rules.once import recur_once
from polyml.graph.rules.onto_zeros import sum_alone
from polyml.graph.rules.pairs import pair_products
from polyml.graph.rules.pieces import join_pieces
from polyml.graph.rules.reader_order import order_like_readers
from polyml.graph.rules.repeated_rows import repeat_rows
from polyml.graph.rules.restrict import restrict_domains
from polyml.graph.rules.short_numbers import shorten_numbers
from polyml.graph.rules.simplify import simplify
from polyml.graph.rules.single_values import drop_single_values
from polyml.graph.rules.split import split_products
from polyml.graph.rules.symmetric import mirror_symmetric
from polyml.graph.rules.tables import make_tables
from polyml.graph.rules.terms_first import compute_terms_first
from polyml.graph.rules.turned_results import turn_results
from polyml.graph.rules.two_places import alternate_places
from polyml.graph.rules.unseen import leave_unseen
from polyml.graph.rules.window_phases import convolve_phases
from polyml.graph.rules.windows import lanes_along_filters
from polyml.graph.rules.windows_gathered import gather_windows
from polyml.graph.storage import settle_results
from polyml.records import dataclass

__all__ = ["LAST_RULES", "RULES", "RewriteOptions", "Rule", "rewrite"]

_MOST_ROUNDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """What rules may do, and what they know of the machine and of the inputs; 0: not known.

    precise: leave out the rules that may change rounding. l1_bytes, l2_bytes, vector_registers, split_vectors: of Target. vector_bytes: of Target, where sums may be arranged for lanes.
    dot_bf16, dot_i16, dot_i8: of Target, where sums may use the instructions (rules/pairs.py). strided: inputs whose last dimension is not contiguous. constants: inputs that never change.
    """

    precise: bool = False
    l1_bytes: int = 0
    l2_bytes: int = 0
    vector_bytes: int = 0
    vector_registers: int = 0
    split_vectors: bool = False
    dot_bf16: float = 0.0
    dot_i16: float = 0.0
    dot_i8: float = 0.0
    strided: frozenset[str] = frozenset()
    constants: frozenset[str] = frozenset()


_NOTHING_KNOWN = RewriteOptions()


@dataclass(frozen=True, slots=True)
class Rule:
    """`apply` gives an equal graph. exact: no result changes, not even in rounding. needs: the numbers of RewriteOptions without which it is not tried."""

    name: str
    apply: Callable[[Graph, RewriteOptions], Graph]
    exact: bool = True
    needs: tuple[str, ...] = ()

    def suits(self, options: RewriteOptions) -> bool:
        return (self.exact or not options.precise) and all(getattr(options, name) for name in self.needs)


def _plain(name: str, apply: Callable[[Graph], Graph], *, exact: bool = True, needs: tuple[str, ...] = ()) -> Rule:
    """A rule to which options are all the same."""
    return Rule(name, lambda graph, _: apply(graph), exact, needs)


def _paired(graph: Graph, given: RewriteOptions) -> Graph:
    """Sums of pairs of whole numbers are exact, those of bf16 are not."""
    dot_bf16 = 0.0 if given.precise else given.dot_bf16
    return pair_products(graph, dot_bf16, given.dot_i16, given.dot_i8, given.strided)


def _windows(graph: Graph, given: RewriteOptions) -> Graph:
    return lanes_along_filters(
        graph,
        vector_bytes=given.vector_bytes,
        l1_bytes=given.l1_bytes,
        l2_bytes=given.l2_bytes,
        constants=given.constants,
    )


def _laid_out(graph: Graph, given: RewriteOptions) -> Graph:
    machine = Machine(given.vector_bytes, given.vector_registers, given.split_vectors, given.l2_bytes)
    return lay_out(graph, machine=machine, strided=given.strided, constants=given.constants)


RULES: tuple[Rule, ...] = (
    # Ordering: dead code goes first, so that use counts are true; it follows inlining for the same reason.
    _plain("dead", remove_dead),
    _plain("simplify", simplify),
    _plain("compared", compare_narrowly),
    _plain("single values", drop_single_values),
    _plain("common", share_equal),
    # Ordering: what is left of an expression may be inlined.
    _plain("tables", make_tables),
    _plain("inline", inline_elementwise),
    _plain("dead", remove_dead),
    _plain("absorb", absorb_copies),
    _plain("hoist", hoist),
    _plain("loops of sums", sum_loops, exact=False),
    # Ordering: before the rule that would compute their terms first.
    Rule(
        "phases",
        lambda graph, given: convolve_phases(graph, vector_bytes=given.vector_bytes),
        exact=False,
        needs=("vector_bytes",),
    ),
    _plain("terms first", compute_terms_first, exact=False),
    _plain("windows gathered", gather_windows, exact=False),
    # Ordering: when windows are gathered.
    _plain("onto zeros", sum_alone, exact=False),
    _plain("restrict", restrict_domains, exact=False),
    _plain("factor", factor_sums, exact=False),
    _plain("combine", combine_terms, exact=False),
)

# Ordering: behind the others, since inlining would undo them.
LAST_RULES: tuple[Rule, ...] = (
    _plain("masked", skip_masked, exact=False, needs=("vector_bytes",)),
    _plain("coupled", decouple, exact=False, needs=("vector_bytes",)),
    _plain("once", recur_once),
    Rule("pairs", _paired),
    _plain("ahead", compute_once),
    _plain("levels in turn", turn_levels),
    _plain("two places", alternate_places),
    _plain("narrow", narrow, exact=False, needs=("vector_bytes",)),
    Rule(
        "nested",
        lambda graph, given: nest_sums(graph, given.l2_bytes, given.vector_bytes),
        exact=False,
        needs=("l2_bytes",),
    ),
    Rule("split", lambda graph, given: split_products(graph, given.l2_bytes), exact=False, needs=("l2_bytes",)),
    # Ordering: of sums as they are computed, before their domains are taken for boxes.
    _plain("symmetric", mirror_symmetric, exact=False, needs=("vector_bytes", "l2_bytes")),
    # Ordering: before the rules below make products in other orders than what reads them.
    _plain("reader order", order_like_readers, exact=False, needs=("vector_bytes", "vector_registers", "l2_bytes")),
    Rule("windows", _windows, exact=False, needs=("vector_bytes",)),
    Rule("laid out", _laid_out, exact=False, needs=("vector_bytes", "vector_registers", "l2_bytes")),
    Rule(
        "turned",
        lambda graph, given: turn_results(graph, cache=given.l2_bytes),
        exact=False,
        needs=("vector_bytes", "l2_bytes"),
    ),
    _plain("short numbers", shorten_numbers, needs=("vector_bytes",)),
    Rule(
        "repeated rows",
        lambda graph, given: repeat_rows(graph, l2_bytes=given.l2_bytes),
        exact=False,
        needs=("vector_bytes", "l2_bytes"),
    ),
    Rule(
        "channels apart",
        lambda graph, given: part_channels(graph, vector_bytes=given.vector_bytes),
        exact=False,
        needs=("vector_bytes",),
    ),
    _plain("interleaved", fetch_interleaved, exact=False, needs=("vector_bytes",)),
    _plain("pieces", join_pieces, exact=False, needs=("vector_bytes",)),
    _plain("unseen", leave_unseen),
)


def rewrite(
    graph: Graph,
    options: RewriteOptions = _NOTHING_KNOWN,
    *,
    observe: Callable[[str, Graph], None] = lambda name, graph: None,
) -> Graph:
    """The graph in its simplest equal form, settled for planning (storage.settle_results).

    Args:
        observe: called with the rule's name and the new graph after each change.
    """
    rules = [rule for rule in RULES if rule.suits(options)]
    for _ in range(_MOST_ROUNDS):
        graph = _to_fixpoint(graph, rules, options, observe)
        settled = settle_results(graph)
        if settled is graph:
            break
        # Ordering: the copies that settling adds may go into what makes their source.
        observe("settle", settled)
        graph = settled
    graph = _in_order(graph, [rule for rule in LAST_RULES if rule.suits(options)], options, observe)
    # Ordering: rules may have added readers of what an argument held (rules/guarded.py), whose new value then cannot be made in its place.
    return settle_results(graph)


def _to_fixpoint(
    graph: Graph, rules: Sequence[Rule], options: RewriteOptions, observe: Callable[[str, Graph], None]
) -> Graph:
    for _ in range(_MOST_ROUNDS):
        before, graph = graph, _in_order(graph, rules, options, observe)
        if graph is before:
            break
    return graph


def _in_order(
    graph: Graph, rules: Sequence[Rule], options: RewriteOptions, observe: Callable[[str, Graph], None]
) -> Graph:
    """Each rule once."""
    for rule in rules:
        after = rule.apply(graph, options)
        if after is not graph:
            observe(rule.name, after)
        graph = after
    return graph
