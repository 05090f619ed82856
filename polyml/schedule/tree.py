"""A view of isl's schedule tree: navigation, what each band member means per statement, and printing. Nothing here changes a tree."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence

import islpy as isl

from polyml.records import dataclass
from polyml.schedule.schedule import Schedule
from polyml.scop.scop import Scop
from polyml.sets.affine import Affine, FloorDiv
from polyml.sets.callbacks import pieces_of
from polyml.sets.from_isl import affine_of
from polyml.sets.spaces import sets_of
from polyml.shown import html_of, text_of

__all__ = [
    "Kind",
    "Member",
    "band_rows",
    "is_coincident",
    "kind_of",
    "loop_word",
    "mark_name",
    "members",
    "node_at",
    "nodes",
    "print_tree",
    "set_names",
    "statements_below",
    "tree_html",
]

Kind = isl.schedule_node_type

_LOOP_WORDS = frozenset({
    "block", "jam", "neighbours", "parallel", "pipelined", "sequential", "shuffle", "stage", "thread", "transpose", "unroll", "vector",
})  # fmt: skip
"""What a mark may begin with that says how a loop is run (codegen/generate.py)."""


def kind_of(node: isl.ScheduleNode) -> isl.schedule_node_type:
    """What the node is."""
    return Kind(node.get_type())


@dataclass(frozen=True, slots=True)
class Member:
    """One loop of a band. rows: per statement its value over the statement's indices; None where that is piecewise.
    coincident: as the band says (zero distance, reductions included)."""

    rows: Mapping[str, Affine | None]
    coincident: bool

    def index(self, statement: str) -> str | None:
        """The statement's index that this loop runs along, when it is one."""
        row = self.rows.get(statement)
        return None if row is None else row.name


def band_rows(band: isl.ScheduleNode) -> list[isl.UnionPwAff]:
    """The members' functions, one each."""
    partial = band.band_get_partial_schedule()
    return [partial.get_at(k) for k in range(band.band_n_member())]


def is_coincident(band: isl.ScheduleNode) -> bool:
    """Whether all members are parallel loops."""
    return all(band.band_member_get_coincident(k) for k in range(band.band_n_member()))


def node_at(root: isl.ScheduleNode, path: Sequence[int]) -> isl.ScheduleNode:
    """The node that is reached by these children, one after the other."""
    for position in path:
        root = root.child(position)
    return root


def members(band: isl.ScheduleNode, scop: Scop) -> tuple[Member, ...]:
    """What the band's loops are, statement by statement."""
    return tuple(
        Member(_row_affines(row, scop), band.band_member_get_coincident(k)) for k, row in enumerate(band_rows(band))
    )


def _row_affines(row: isl.UnionPwAff, scop: Scop) -> dict[str, Affine | None]:
    """Of the scop's statements: a band may also have a function for one that another has taken the place of, of which no instance is left."""
    found: dict[str, Affine | None] = {}
    pieces = row.get_pw_aff_list()
    for position in range(pieces.n_pw_aff()):
        piecewise = pieces.get_at(position)
        name = piecewise.get_space().get_tuple_name(isl.dim_type.in_)
        if name not in scop.statements:
            continue
        parts = pieces_of(piecewise)
        found[name] = affine_of(parts[0][1], scop.statements[name].indices) if len(parts) == 1 else None
    return dict(sorted(found.items()))


def statements_below(node: isl.ScheduleNode) -> tuple[str, ...]:
    """Names of the statements with instances that reach the node, sorted."""
    return set_names(node.get_domain())


def set_names(instances: isl.UnionSet) -> tuple[str, ...]:
    """Tuple names in a union of sets, sorted."""
    return tuple(sorted(s.get_tuple_name() for s in sets_of(instances)))


def mark_name(node: isl.ScheduleNode) -> str:
    """The text of a mark node."""
    return node.mark_get_id().get_name()


def loop_word(mark: str) -> str | None:
    """How a mark asks the loop below it to be run, without axis and factor; None for one that is about something else."""
    word = mark.partition(":")[0].partition(".")[0]
    return word if word in _LOOP_WORDS else None


def nodes(root: isl.ScheduleNode) -> Iterator[isl.ScheduleNode]:
    """The node and all below it, parents first, in order; leaves included."""
    yield root
    for position in range(root.n_children() if kind_of(root) != Kind.leaf else 0):
        yield from nodes(root.child(position))


# -- printing -----------------------------------------------------------------------------------------------------------------------


def print_tree(tree: isl.Schedule, scop: Scop) -> str:
    """The tree as text with box-drawing, one node a line: `band[i, j | permutable | coincident 1,1]`; the same text for equal trees."""
    return "\n".join(f"{prefix}{text}" for prefix, text in _lines(tree.get_root(), scop, "", ""))


def tree_html(tree: isl.Schedule, scop: Scop) -> str:
    """The tree for a notebook: the text in a preformatted block, marks emphasized."""
    lines = []
    for prefix, text in _lines(tree.get_root(), scop, "", ""):
        escaped = html.escape(text)
        lines.append(html.escape(prefix) + (f"<b>{escaped}</b>" if text.startswith("mark") else escaped))
    return '<pre class="polyml-tree">' + "\n".join(lines) + "</pre>"


@text_of.register
def _schedule_text(schedule: Schedule) -> str:
    return print_tree(schedule.tree, schedule.scop)


@html_of.register
def _schedule_html(schedule: Schedule) -> str:
    return tree_html(schedule.tree, schedule.scop)


def _lines(node: isl.ScheduleNode, scop: Scop, first: str, rest: str) -> Iterator[tuple[str, str]]:
    text = _describe(node, scop)
    children = [node.child(k) for k in range(node.n_children())]
    yield first, text
    below = [child for child in children if kind_of(child) != Kind.leaf]
    for position, child in enumerate(below):
        last = position == len(below) - 1
        yield from _lines(child, scop, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _describe(node: isl.ScheduleNode, scop: Scop) -> str:
    match kind_of(node):
        case Kind.domain:
            return "domain: " + _names(node.domain_get_domain(), scop)
        case Kind.filter:
            return "filter: " + _names(node.filter_get_filter(), scop)
        case Kind.band:
            return _describe_band(node, scop)
        case Kind.mark:
            return "mark: " + mark_name(node)
        case other:
            return str(other).rsplit(".", 1)[-1]


def _describe_band(node: isl.ScheduleNode, scop: Scop) -> str:
    loops = members(node, scop)
    parts = [", ".join(_row_text(member) for member in loops)]
    if node.band_get_permutable():
        parts.append("permutable")
    parts.append("coincident " + ",".join("1" if member.coincident else "0" for member in loops))
    return f"band[{' | '.join(parts)}]"


def _row_text(member: Member) -> str:
    """`i` when all statements agree, else `S: i, T: j + 1`, equal rows grouped."""
    by_text: dict[str, list[str]] = {}
    for name, row in member.rows.items():
        by_text.setdefault("?" if row is None else _affine_text(row), []).append(name)
    if len(by_text) == 1:
        return next(iter(by_text))
    return "{" + "; ".join(f"{' '.join(names)}: {text}" for text, names in sorted(by_text.items())) + "}"


def _affine_text(row: Affine) -> str:
    """The function; a tile loop as `8*(n//8)`."""
    match row.terms:
        case ((FloorDiv(numerator, size), factor),) if (
            row.constant == 0 and numerator.name is not None and size == factor
        ):
            return f"{size}*({numerator.name}//{size})"
        case _:
            return str(row)


def _names(instances: isl.UnionSet, scop: Scop) -> str:
    """`S[i, j]` per statement in the scop's order; with its conditions where it is not the whole domain."""
    by_name = {s.get_tuple_name(): s for s in sets_of(instances)}
    texts = []
    for name, statement in scop.statements.items():
        if name not in by_name:
            continue
        text = f"{name}[{', '.join(statement.indices)}]"
        if not statement.domain.is_subset(by_name[name]):
            text += " (part)"
        texts.append(text)
    return ", ".join(texts)
