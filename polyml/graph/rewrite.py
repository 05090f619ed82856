"""The rewriter: a table of rules, applied in order until nothing changes.

Each rule takes a Graph and gives an equal one (the same object when it does not apply), so rules can be run, tested and printed one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Set

from polyml.graph.ir import Graph
from polyml.graph.rules.absorb import absorb_copies
from polyml.graph.rules.ahead import compute_once
from polyml.graph.rules.channels_apart import part_channels
from polyml.graph.rules.combine import combine_terms
from polyml.graph.rules.common import share_equal
from polyml.graph.rules.coupled import decouple
from polyml.graph.rules.dead import remove_dead
from polyml.graph.rules.factor import factor_sums
from polyml.graph.rules.hoist import hoist
from polyml.graph.rules.inline import inline_elementwise
from polyml.graph.rules.interleaved import fetch_interleaved
from polyml.graph.rules.laid_out import lay_out
from polyml.graph.rules.layout_costs import Machine
from polyml.graph.rules.levels_in_turn import turn_levels
from polyml.graph.rules.masked import skip_masked
from polyml.graph.rules.narrow import narrow
from polyml.graph.rules.nested import nest_sums
from polyml.graph.rules.once import recur_once
from polyml.graph.rules.pairs import pair_products
from polyml.graph.rules.pieces import join_pieces
from polyml.graph.rules.reader_order import order_like_readers
from polyml.graph.rules.repeated_rows import repeat_rows
from polyml.graph.rules.restrict import restrict_domains
from polyml.graph.rules.short_numbers import shorten_numbers
from polyml.graph.rules.simplify import simplify
from polyml.graph.rules.single_values import drop_single_values
from polyml.graph.rules.split import split_products
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

__all__ = ["RULES", "Rule", "rewrite"]


@dataclass(frozen=True, slots=True)
class Rule:
    """`apply` gives an equal graph. exact: no result changes, not even in rounding."""

    name: str
    apply: Callable[[Graph], Graph]
    exact: bool = True


RULES: tuple[Rule, ...] = (
    # Ordering: dead code goes first, so that use counts are true; it follows inlining for the same reason.
    Rule("dead", remove_dead),
    Rule("simplify", simplify),
    Rule("single values", drop_single_values),
    Rule("common", share_equal),
    # Ordering: what is left of an expression may be inlined.
    Rule("tables", make_tables),
    Rule("inline", inline_elementwise),
    Rule("dead", remove_dead),
    Rule("absorb", absorb_copies),
    Rule("hoist", hoist),
    Rule("terms first", compute_terms_first, exact=False),
    Rule("windows gathered", gather_windows, exact=False),
    Rule("restrict", restrict_domains, exact=False),
    Rule("factor", factor_sums, exact=False),
    Rule("combine", combine_terms, exact=False),
)

_MOST_ROUNDS = 10


def rewrite(
    graph: Graph,
    *,
    rules: Sequence[Rule] = RULES,
    precise: bool = False,
    cache: int = 0,
    l1_bytes: int = 0,
    dot_bf16: float = 0.0,
    dot_i16: float = 0.0,
    dot_i8: float = 0.0,
    strided: Set[str] = frozenset(),
    vector_bytes: int = 0,
    vector_registers: int = 0,
    split_vectors: bool = False,
    constants: Set[str] = frozenset(),
    observe: Callable[[str, Graph], None] | None = None,
) -> Graph:
    """The graph in its simplest equal form, settled for planning (storage.settle_results).

    Args:
        precise: leave out the rules that may change rounding. cache: bytes that a core keeps close (0: not known), l1_bytes: of its first cache.
        dot_bf16, dot_i16, dot_i8: of Target, where sums may use the instructions (rules/pairs.py). strided: inputs whose last dimension is not contiguous.
        vector_bytes: of a register, where sums over windows may be arranged for lanes (rules/windows.py; 0: leave them), or of operands in parts joined (rules/pieces.py). constants: inputs that never change.
        observe: called with the rule's name and the new graph after each change.
    """
    chosen = [rule for rule in rules if rule.exact or not precise]
    if vector_bytes and not precise and rules is RULES:
        # Ordering: before the rule that would compute their terms first.
        phases = functools.partial(convolve_phases, vector_bytes=vector_bytes)
        chosen.insert([rule.name for rule in chosen].index("terms first"), Rule("phases", phases, exact=False))
    graph = _to_fixpoint(graph, chosen, observe)
    for _ in range(_MOST_ROUNDS):
        settled = settle_results(graph)
        if settled is graph:
            break
        if observe is not None:
            observe("settle", settled)
        # Ordering: the copies that settling adds may go into what makes their source.
        graph = _to_fixpoint(settled, chosen, observe)
    # Ordering: last, since inlining would undo it.
    last: list[tuple[str, Callable[[Graph], Graph]]] = [
        ("once", recur_once),
        ("ahead", compute_once),
        ("levels in turn", turn_levels),
        ("two places", alternate_places),
    ]
    if dot_bf16 or dot_i16:
        floats = 0.0 if precise else dot_bf16
        pairs = functools.partial(pair_products, dot_bf16=floats, dot_i16=dot_i16, dot_i8=dot_i8, strided=strided)
        last.insert(1, ("pairs", pairs))
    if vector_bytes and not precise:
        last = [("masked", skip_masked), ("coupled", decouple), *last, ("narrow", narrow)]
    if not precise and cache:
        last.append(("nested", functools.partial(nest_sums, cache=cache)))
        last.append(("split", functools.partial(split_products, cache=cache)))
    if vector_bytes and not precise:
        arrange = functools.partial(
            lanes_along_filters, vector_bytes=vector_bytes, l1_bytes=l1_bytes, l2_bytes=cache, constants=constants
        )
        if cache and vector_registers:
            # Ordering: before the rules below make products in other orders than what reads them.
            last.append(("reader order", order_like_readers))
        last.append(("windows", arrange))
        if cache and vector_registers:
            machine = Machine(vector_bytes, vector_registers, split_vectors, cache)
            laid = functools.partial(
                lay_out, machine=machine, strided=frozenset(strided), constants=frozenset(constants)
            )
            last.append(("laid out", laid))
        if cache:
            last.append(("turned", functools.partial(turn_results, cache=cache)))
            last.append(("short numbers", shorten_numbers))
            last.append(("repeated rows", functools.partial(repeat_rows, l2_bytes=cache)))
        last.append(("channels apart", functools.partial(part_channels, vector_bytes=vector_bytes)))
        last.append(("interleaved", fetch_interleaved))
        last.append(("pieces", join_pieces))
    last.append(("unseen", leave_unseen))
    for name, apply in last:
        after = apply(graph)
        if after is not graph and observe is not None:
            observe(name, after)
        graph = after
    # Ordering: rules may have added readers of what an argument held (rules/guarded.py), whose new value then cannot be made in its place.
    return settle_results(graph)


def _to_fixpoint(graph: Graph, rules: Sequence[Rule], observe: Callable[[str, Graph], None] | None) -> Graph:
    for _ in range(_MOST_ROUNDS):
        before = graph
        for rule in rules:
            after = rule.apply(graph)
            if after is not graph and observe is not None:
                observe(rule.name, after)
            graph = after
        if graph is before:
            break
    return graph
