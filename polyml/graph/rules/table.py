"""The table of rules: those that are applied in order until nothing changes, and those that are applied once, after them."""

from __future__ import annotations

from collections.abc import Callable

from polyml.graph.ir import Graph
from polyml.graph.rules.algebra.combine import combine_terms
from polyml.graph.rules.algebra.determined import replace_determined
from polyml.graph.rules.algebra.polynomials import write_polynomials
from polyml.graph.rules.algebra.quotients import divide_factors
from polyml.graph.rules.algebra.restrict import restrict_domains
from polyml.graph.rules.algebra.simplify import simplify
from polyml.graph.rules.algebra.single_values import drop_single_values
from polyml.graph.rules.layouts.channels_apart import part_channels
from polyml.graph.rules.layouts.costs import Machine
from polyml.graph.rules.layouts.diagonals import copy_diagonals
from polyml.graph.rules.layouts.index_blocks import part_indices
from polyml.graph.rules.layouts.interleaved import fetch_interleaved
from polyml.graph.rules.layouts.laid_out import lay_out
from polyml.graph.rules.layouts.merged_dimensions import merge_dimensions
from polyml.graph.rules.layouts.opposite_order import copy_backwards
from polyml.graph.rules.layouts.quotients_apart import part_quotients
from polyml.graph.rules.layouts.reader_order import order_like_readers
from polyml.graph.rules.layouts.remainders_in_turn import write_remainders
from polyml.graph.rules.layouts.repeated_rows import repeat_rows
from polyml.graph.rules.layouts.small_matrices import part_small_matrices
from polyml.graph.rules.layouts.sums_apart import sum_apart
from polyml.graph.rules.layouts.turned_results import turn_results
from polyml.graph.rules.numbers.compared import compare_narrowly
from polyml.graph.rules.numbers.counts import count_narrowly
from polyml.graph.rules.numbers.in_floats import sum_in_floats
from polyml.graph.rules.numbers.pairs import pair_products
from polyml.graph.rules.numbers.scales import group_scales
from polyml.graph.rules.numbers.short_numbers import shorten_numbers
from polyml.graph.rules.recurrences.coupled import decouple
from polyml.graph.rules.recurrences.levels_in_turn import turn_levels
from polyml.graph.rules.recurrences.once import recur_once
from polyml.graph.rules.recurrences.two_places import alternate_places
from polyml.graph.rules.reuse.absorb import absorb_copies
from polyml.graph.rules.reuse.ahead import compute_once
from polyml.graph.rules.reuse.chosen import choose_elements
from polyml.graph.rules.reuse.common import share_equal
from polyml.graph.rules.reuse.dead import remove_dead
from polyml.graph.rules.reuse.hoist import hoist
from polyml.graph.rules.reuse.inline import inline_elementwise
from polyml.graph.rules.reuse.joined_checks import join_checks
from polyml.graph.rules.reuse.shared_places import share_places
from polyml.graph.rules.reuse.tables import make_tables
from polyml.graph.rules.reuse.unread import crop_unread
from polyml.graph.rules.reuse.unseen import leave_unseen
from polyml.graph.rules.sums.counted import multiply_by_counts
from polyml.graph.rules.sums.factor import factor_sums
from polyml.graph.rules.sums.factors_ahead import multiply_ahead
from polyml.graph.rules.sums.loops_of_sums import sum_loops
from polyml.graph.rules.sums.masked import skip_masked
from polyml.graph.rules.sums.memory_order import sum_in_memory_order
from polyml.graph.rules.sums.narrow import narrow
from polyml.graph.rules.sums.nested import nest_sums
from polyml.graph.rules.sums.of_pairs import reduce_pairs
from polyml.graph.rules.sums.onto_zeros import sum_alone
from polyml.graph.rules.sums.pieces import join_pieces
from polyml.graph.rules.sums.remainders import sum_remainders
from polyml.graph.rules.sums.running import run_reductions
from polyml.graph.rules.sums.sorted import bisect_sorted
from polyml.graph.rules.sums.split import split_products
from polyml.graph.rules.sums.symmetric import mirror_symmetric
from polyml.graph.rules.sums.terms_in_blocks import sum_blocks
from polyml.graph.rules.sums.through_names import multiply_through_names
from polyml.graph.rules.sums.zeros import skip_zeros
from polyml.graph.rules.windows.borders import store_borders
from polyml.graph.rules.windows.composed import compose_windows
from polyml.graph.rules.windows.filters import lanes_along_filters
from polyml.graph.rules.windows.gathered import gather_windows
from polyml.graph.rules.windows.joined_filters import join_filters
from polyml.graph.rules.windows.phases import convolve_phases
from polyml.graph.rules.windows.relative import count_from_places
from polyml.graph.rules.windows.repeated import spread_filters
from polyml.graph.rules.windows.terms_first import compute_terms_first
from polyml.records import dataclass

__all__ = ["LAST_RULES", "RULES", "RewriteOptions", "Rule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """What rules may do, and what they know of the machine and of the inputs; 0: not known.

    precise: leave out the rules that may change rounding. l1_bytes, l2_bytes, vector_registers, split_vectors: of Target. vector_bytes: of Target, where sums may be arranged for lanes.
    dot_bf16, dot_i16, dot_i8: of Target, where sums may use the instructions (rules/numbers/pairs.py). shared: whether threads share loops. strided: inputs whose last dimension is not contiguous. orders: of inputs that lie in memory otherwise than their dimensions say, these in the order of memory, none where no elements lie side by side. constants: inputs that never change.
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
    shared: bool = False
    strided: frozenset[str] = frozenset()
    orders: tuple[tuple[str, tuple[int, ...]], ...] = ()
    constants: frozenset[str] = frozenset()


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
    _plain("determined", replace_determined),
    _plain("counted", multiply_by_counts, exact=False),
    _plain("common", share_equal),
    _plain("remainders", sum_remainders, exact=False, needs=("vector_bytes",)),
    _plain("polynomials", write_polynomials, exact=False),
    # Ordering: what is chosen may be inlined.
    _plain("chosen", choose_elements),
    # Ordering: what is left of an expression may be inlined.
    _plain("tables", make_tables),
    _plain("inline", inline_elementwise),
    _plain("dead", remove_dead),
    _plain("absorb", absorb_copies),
    _plain("hoist", hoist),
    _plain("loops of sums", sum_loops, exact=False),
    # Ordering: before the rules that gather what is added to several places.
    _plain("blocks of terms", sum_blocks, exact=False),
    _plain("repeated", spread_filters, exact=False, needs=("vector_bytes",)),
    # Ordering: before the rules that would compute what nobody reads.
    _plain("unread", crop_unread),
    # Ordering: before the rules that would compute their terms first.
    _plain("joined filters", join_filters, needs=("vector_bytes",)),
    Rule(
        "phases",
        lambda graph, given: convolve_phases(graph, vector_bytes=given.vector_bytes, l2_bytes=given.l2_bytes),
        exact=False,
        needs=("vector_bytes",),
    ),
    _plain("terms first", compute_terms_first, exact=False),
    Rule(
        "windows gathered",
        lambda graph, given: gather_windows(graph, cache=4 * given.l2_bytes if given.vector_bytes else None),
        exact=False,
    ),
    # Ordering: when windows are gathered.
    _plain("onto zeros", sum_alone, exact=False),
    _plain("restrict", restrict_domains, exact=False),
    _plain("factor", factor_sums, exact=False),
    _plain("combine", combine_terms, exact=False),
    # Ordering: when what is rounded or compared is inlined. Each thread of a GPU would divide.
    _plain("quotients", divide_factors, exact=False, needs=("vector_bytes",)),
)


# Ordering: behind the others, since inlining would undo them.
LAST_RULES: tuple[Rule, ...] = (
    # Ordering: before the rules that look for windows.
    _plain("relative", count_from_places, needs=("vector_bytes",)),
    # Ordering: before the rules that copy what windows read, and those for windows that are short.
    Rule(
        "long windows",
        lambda graph, given: compose_windows(graph, precise=given.precise),
        needs=("vector_bytes",),
    ),
    # Ordering: before the rules that split indices by what they are divided by.
    _plain("borders", store_borders, needs=("vector_bytes",)),
    _plain("remainders in turn", write_remainders, needs=("vector_bytes",)),
    # Ordering: before the rule that gives heads which share keys two indices.
    _plain("masked", skip_masked, exact=False, needs=("vector_bytes",)),
    _plain("zeros", skip_zeros, exact=False, needs=("vector_bytes",)),
    # Ordering: before the rules that look for plain indices.
    Rule(
        "index blocks",
        lambda graph, given: part_indices(graph, vector_bytes=given.vector_bytes),
        needs=("vector_bytes",),
    ),
    # Ordering: before the rule that makes what grows a loop.
    Rule("of pairs", lambda graph, given: reduce_pairs(graph, precise=given.precise), needs=("vector_bytes",)),
    # Ordering: before the rules for loops.
    Rule("running", lambda graph, given: run_reductions(graph, precise=given.precise), needs=("vector_bytes",)),
    Rule("sorted", lambda graph, given: bisect_sorted(graph, given.vector_bytes), needs=("vector_bytes",)),
    _plain("coupled", decouple, exact=False, needs=("vector_bytes",)),
    _plain("once", recur_once),
    Rule("pairs", _paired),
    # Ordering: of sums that are not made of pairs, ahead of the rule that converts their operands.
    _plain("in floats", sum_in_floats, exact=False, needs=("vector_bytes",)),
    _plain("scales", group_scales, exact=False),
    # Ordering: when scales stand beside what they scale.
    Rule("ahead", lambda graph, given: compute_once(graph, cheap=bool(given.vector_bytes))),
    # Ordering: when places have their simplest form, and before those that are left to share.
    _plain("joined checks", join_checks),
    _plain("shared places", share_places, needs=("vector_bytes",)),
    _plain("levels in turn", turn_levels),
    _plain("two places", alternate_places),
    _plain("narrow", narrow, exact=False, needs=("vector_bytes",)),
    # Ordering: what it makes has the order that the rule for one sum would choose.
    Rule(
        "through names",
        lambda graph, given: multiply_through_names(graph, given.l2_bytes, given.vector_bytes, given.constants),
        exact=False,
        needs=("l2_bytes",),
    ),
    Rule(
        "nested",
        lambda graph, given: nest_sums(graph, given.l2_bytes, given.vector_bytes),
        exact=False,
        needs=("l2_bytes",),
    ),
    Rule("split", lambda graph, given: split_products(graph, given.l2_bytes), exact=False, needs=("l2_bytes",)),
    # Ordering: before the rules that see two factors alike, or lay products out.
    _plain("diagonals", copy_diagonals, needs=("vector_bytes",)),
    _plain("opposite order", copy_backwards, needs=("vector_bytes",)),
    # Ordering: of sums as they are computed, before their domains are taken for boxes.
    Rule(
        "symmetric",
        lambda graph, given: mirror_symmetric(graph, given.vector_registers, given.vector_bytes, shared=given.shared),
        exact=False,
        needs=("vector_bytes", "l2_bytes"),
    ),
    # Ordering: behind the rules that sum inner factors first, which says how often elements are used, and that see symmetric factors.
    Rule(
        "factors ahead",
        lambda graph, given: multiply_ahead(graph, given.l2_bytes),
        exact=False,
        needs=("vector_bytes", "l2_bytes"),
    ),
    # Ordering: of sums whose factors are in their places, before the rules that lay sums out.
    Rule(
        "memory order",
        lambda graph, given: sum_in_memory_order(
            graph, cache=given.l2_bytes, vector_bytes=given.vector_bytes, orders=dict(given.orders)
        ),
        exact=False,
        needs=("vector_bytes", "l2_bytes"),
    ),
    # Ordering: before the rules below make products in other orders than what reads them.
    _plain("reader order", order_like_readers, exact=False, needs=("vector_bytes", "vector_registers", "l2_bytes")),
    Rule("windows", _windows, exact=False, needs=("vector_bytes",)),
    Rule("laid out", _laid_out, exact=False, needs=("vector_bytes", "vector_registers", "l2_bytes")),
    Rule(
        "turned",
        lambda graph, given: turn_results(graph, cache=given.l2_bytes, vector_bytes=given.vector_bytes),
        exact=False,
        needs=("vector_bytes", "l2_bytes"),
    ),
    Rule(
        "sums apart",
        lambda graph, given: sum_apart(graph, cache=given.l2_bytes, vector_bytes=given.vector_bytes),
        needs=("vector_bytes", "l2_bytes"),
    ),
    _plain("counts", count_narrowly, needs=("vector_bytes",)),
    _plain("short numbers", shorten_numbers, needs=("vector_bytes",)),
    Rule(
        "repeated rows",
        lambda graph, given: repeat_rows(graph, l2_bytes=given.l2_bytes),
        exact=False,
        needs=("vector_bytes", "l2_bytes"),
    ),
    # Ordering: before the rule that knows one small index.
    Rule(
        "small matrices",
        lambda graph, given: part_small_matrices(graph, vector_bytes=given.vector_bytes, l2_bytes=given.l2_bytes),
        exact=False,
        needs=("vector_bytes",),
    ),
    Rule(
        "channels apart",
        lambda graph, given: part_channels(graph, vector_bytes=given.vector_bytes),
        exact=False,
        needs=("vector_bytes",),
    ),
    # Ordering: behind the rules that look for plain indices.
    _plain("merged dimensions", merge_dimensions, needs=("vector_bytes",)),
    _plain("interleaved", fetch_interleaved, exact=False, needs=("vector_bytes",)),
    # Ordering: behind the rules that look for plain indices, and the one that makes quotients where these serve.
    Rule(
        "quotients apart",
        lambda graph, given: part_quotients(graph, vector_bytes=given.vector_bytes),
        needs=("vector_bytes",),
    ),
    _plain("pieces", join_pieces, exact=False, needs=("vector_bytes",)),
    _plain("unseen", leave_unseen),
)
