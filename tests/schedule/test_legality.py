"""What the proof refuses, each with a witness pair, and what it lets pass."""

from __future__ import annotations

import islpy as isl
import pytest

from polyml.errors import IllegalScheduleError
from polyml.schedule.legality import check_tree
from polyml.scop.dependences import Dependences
from polyml.scop.scop import Scop
from tests.schedule import programs

SUM = """
input x f32[8]
output s f32[]
I[]: : s sum: 0
U[k]: 0 <= k < 8: s sum= x[k]
"""
RECURRENCE = """
inout y f32[8, 8]
S[i, j]: 0 <= i < 8 and 1 <= j < 8: y[i, j] = y[i, j - 1] + 1
"""


def _check(tree: str, program: tuple[Scop, Dependences], *, relax: bool = True) -> None:
    scop, dependences = program
    parsed = isl.Schedule(tree.replace("'", '"'))
    check_tree(parsed, scop, dependences.validity, dependences.reduction, relax_reductions=relax)


def _sum(band: str, mark: str | None = None, order: tuple[str, str] = ("I", "U")) -> str:
    domain = "{ I[]; U[k] : 0 <= k < 8 }"
    inner = f"schedule: '[{{ U[k] -> [({band})] }}]'"
    update = f"child: {{ {inner} }}" if mark is None else f"child: {{ mark: '{mark}', child: {{ {inner} }} }}"
    parts = {"I": "{ filter: '{ I[] }' }", "U": f"{{ filter: '{{ U[k] }}', {update} }}"}
    return f"{{ domain: '{domain}', child: {{ sequence: [ {parts[order[0]]}, {parts[order[1]]} ] }} }}"


def _recurrence(first: str, second: str, mark: str | None = None) -> str:
    inner = f"schedule: '[{{ S[i, j] -> [({second})] }}]'"
    inner = inner if mark is None else f"mark: '{mark}', child: {{ {inner} }}"
    domain = "{ S[i, j] : 0 <= i < 8 and 1 <= j < 8 }"
    return f"{{ domain: '{domain}', child: {{ schedule: '[{{ S[i, j] -> [({first})] }}]', child: {{ {inner} }} }} }}"


def test_reversed_sequence_is_refused() -> None:
    with pytest.raises(IllegalScheduleError, match=r"I\[\].*U\[.*opposite order"):
        _check(_sum("k", order=("U", "I")), programs.program(SUM))


@pytest.mark.parametrize("mark", ["parallel", "jam:4"])
def test_a_reduction_may_not_run_at_once(mark: str) -> None:
    with pytest.raises(IllegalScheduleError, match=r"U\[.*U\[.*update one element at once"):
        _check(_sum("k", mark), programs.program(SUM))


def test_lanes_of_a_reduction_are_private() -> None:
    _check(_sum("k", "neighbours:4"), programs.program(SUM))
    _check(_sum("k", "vector:4"), programs.program(SUM))


def test_lanes_of_a_reduction_into_elements_that_depend_on_them() -> None:
    program = programs.program("""
    input x f32[8, 8]
    output s f32[16]
    I[m]: 0 <= m < 16: s[m] sum: 0
    U[i, j]: 0 <= i < 8 and 0 <= j < 8: s[i + j] sum= x[i, j]
    """)
    with pytest.raises(IllegalScheduleError, match="from different lanes"):
        _check(_diagonals("i + j", "vector:1", "i"), program)
    _check(_diagonals("i + j", "unroll:2", "i"), program)
    # At a fixed i the lanes along j update different elements.
    _check(_diagonals("i", "vector:1", "j"), program)


def _diagonals(outer: str, mark: str, inner: str) -> str:
    update = f"schedule: '[{{ U[i, j] -> [({outer})] }}]', child: {{ mark: '{mark}', child: {{ schedule: '[{{ U[i, j] -> [({inner})] }}]' }} }}"
    parts = f"{{ filter: '{{ I[m] }}', child: {{ schedule: '[{{ I[m] -> [(m)] }}]' }} }}, {{ filter: '{{ U[i, j] }}', child: {{ {update} }} }}"
    domain = "{ I[m] : 0 <= m < 16; U[i, j] : 0 <= i < 8 and 0 <= j < 8 }"
    return f"{{ domain: '{domain}', child: {{ sequence: [ {parts} ] }} }}"


def test_reversed_reduction_needs_relaxation() -> None:
    _check(_sum("-k"), programs.program(SUM))
    with pytest.raises(IllegalScheduleError, match="opposite order"):
        _check(_sum("-k"), programs.program(SUM), relax=False)


def test_interchange_of_a_recurrence_is_legal_and_reversal_is_not() -> None:
    program = programs.program(RECURRENCE)
    _check(_recurrence("i", "j"), program)
    _check(_recurrence("j", "i"), program)
    with pytest.raises(IllegalScheduleError, match=r"S\[.*S\[.*opposite order"):
        _check(_recurrence("i", "-j"), program)


@pytest.mark.parametrize("mark", ["parallel", "vector:2", "jam:2", "neighbours:2"])
def test_marks_on_a_recurrence(mark: str) -> None:
    program = programs.program(RECURRENCE)
    _check(_recurrence("j", "i", mark), program)
    with pytest.raises(IllegalScheduleError, match=r"S\[.*S\[.*run at once"):
        _check(_recurrence("i", "j", mark), program)


def test_instances_at_the_same_time_are_not_ordered() -> None:
    with pytest.raises(IllegalScheduleError, match="are not ordered"):
        _check(_recurrence("i", "0"), programs.program(RECURRENCE))


def test_every_instance_exactly_once() -> None:
    scop, dependences = programs.program(SUM)
    part = "{ domain: '{ I[]; U[k] : 0 <= k < 7 }', child: { sequence: [ { filter: '{ I[] }' }, { filter: '{ U[k] }' } ] } }"
    with pytest.raises(IllegalScheduleError, match="not those of the region"):
        _check(part, (scop, dependences))
    for filters, message in ((("k < 3", "k > 4"), "leaves out"), (("k < 5", "k > 3"), "twice")):
        children = ", ".join(
            f"{{ filter: '{{ U[k] : {f} }}', child: {{ schedule: '[{{ U[k] -> [(k)] }}]' }} }}" for f in filters
        )
        tree = f"{{ domain: '{{ I[]; U[k] : 0 <= k < 8 }}', child: {{ sequence: [ {{ filter: '{{ I[] }}' }}, {children} ] }} }}"
        with pytest.raises(IllegalScheduleError, match=message):
            _check(tree, (scop, dependences))


def test_children_in_any_order() -> None:
    """isl's set node: what stands in it may not depend on each other."""
    tree = _sum("k").replace("sequence", "set")
    with pytest.raises(IllegalScheduleError, match=r"I\[.*U\[.*are not ordered"):
        _check(tree, programs.program(SUM))
    apart = programs.program("""
    input x f32[8]
    output y f32[8]
    output z f32[8]
    I[k]: 0 <= k < 8: y[k] = x[k]
    U[k]: 0 <= k < 8: z[k] = x[k]
    """)
    parts = ", ".join(f"{{ filter: '{{ {s}[k] }}', child: {{ schedule: '[{{ {s}[k] -> [(k)] }}]' }} }}" for s in "IU")
    _check(f"{{ domain: '{{ I[k] : 0 <= k < 8; U[k] : 0 <= k < 8 }}', child: {{ set: [ {parts} ] }} }}", apart)


STEPS = """
inout y f32[9, 9]
S[i, j]: 1 <= i < 8 and 1 <= j < 8: y[i, j] = y[i - 1, j{by}] + 1
"""


def _pipelined(inner: str, mark: str = "stage") -> str:
    stages = f"mark: '{mark}', child: {{ schedule: '[{{ S[i, j] -> [({inner})] }}]' }}"
    rows = f"schedule: '[{{ S[i, j] -> [(i)] }}]', child: {{ {stages} }}"
    domain = "{ S[i, j] : 1 <= i < 8 and 1 <= j < 8 }"
    return f"{{ domain: '{domain}', child: {{ mark: 'pipelined', child: {{ {rows} }} }} }}"


@pytest.mark.parametrize(("by", "inner", "legal"), [
    (" - 1", "j", True), ("", "j", True), (" + 1", "j", False), (" + 1", "2i + j", True), (" + 1", "floor((i + j)/4)", True), ("", "-j", True), (" - 1", "-j", False),
])  # fmt: skip
def test_what_a_pipelined_loop_carries_goes_on_to_later_stages(by: str, inner: str, legal: bool) -> None:
    program = programs.program(STEPS.replace("{by}", by))
    if legal:
        _check(_pipelined(inner), program)
        return
    with pytest.raises(IllegalScheduleError, match=r"S\[.*S\[.*run at once in a pipelined loop"):
        _check(_pipelined(inner), program)


def test_arrays_of_one_iteration_stand_between_a_pipelined_loop_and_its_stages() -> None:
    tree = (
        _pipelined("j").replace("child: { mark: 'stage'", "child: { mark: 'allocate:a', child: { mark: 'stage'") + " }"
    )
    _check(tree, programs.program(STEPS.replace("{by}", "")))
    with pytest.raises(IllegalScheduleError, match="run at once in a pipelined loop"):
        _check(tree, programs.program(STEPS.replace("{by}", " + 1")))


def test_a_pipelined_loop_has_stages_and_no_reduction() -> None:
    with pytest.raises(IllegalScheduleError, match="a pipelined loop has no stages"):
        _check(_pipelined("j", "unroll:2"), programs.program(STEPS.replace("{by}", "")))
    text = "input x f32[9, 9]\noutput s f32[]\nI[]: : s sum: 0\nS[i, j]: 1 <= i < 8 and 1 <= j < 8: s sum= x[i, j]\n"
    rows = _pipelined("j").partition("child: ")[2].removesuffix(" }")
    tree = (
        "{ domain: '{ I[]; S[i, j] : 1 <= i < 8 and 1 <= j < 8 }', child: { sequence: "
        f"[ {{ filter: '{{ I[] }}' }}, {{ filter: '{{ S[i, j] }}', child: {rows} }} ] }} }}"
    )
    with pytest.raises(IllegalScheduleError, match="update one element at once in a pipelined loop"):
        _check(tree, programs.program(text))


ROWS = """
input x f32[8, 6]
output y f32[8]
I[i]: 0 <= i < 8: y[i] sum: 0
U[i, k]: 0 <= i < 8 and 0 <= k < 6: y[i] sum= x[i, k]
"""


def _rows(first: str, mark: str, second: str = "k") -> str:
    domain = "{ I[i] : 0 <= i < 8; U[i, k] : 0 <= i < 8 and 0 <= k < 6 }"
    inner = f"schedule: '[{{ U[i, k] -> [({second})] }}]'"
    outer = f"mark: '{mark}', child: {{ schedule: '[{{ U[i, k] -> [({first})] }}]', child: {{ {inner} }} }}"
    return (
        f"{{ domain: '{domain}', child: {{ sequence: [ {{ filter: '{{ I[i] }}' }}, "
        f"{{ filter: '{{ U[i, k] }}', child: {{ {outer} }} }} ] }} }}"
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[isl.UnionMap]:
    """What pairs were taken out of."""
    found: list[isl.UnionMap] = []
    subtract = isl.UnionMap.subtract

    def remembered(one: isl.UnionMap, other: isl.UnionMap) -> isl.UnionMap:
        found.append(one)
        return subtract(one, other)

    monkeypatch.setattr(isl.UnionMap, "subtract", remembered)
    return found


def test_what_is_left_of_reductions_is_computed_where_a_mark_asks(asked: list[isl.UnionMap]) -> None:
    program = programs.program(ROWS)
    asked.clear()
    _check(_rows("k", "unroll:2", "i"), program)
    assert not asked
    with pytest.raises(IllegalScheduleError, match="update one element at once in a parallel loop"):
        _check(_rows("i + k", "parallel"), program)
    assert asked


@pytest.mark.parametrize(("band", "mark"), [
    ("i", "parallel"), ("floor(i/4)", "parallel"), ("i - 3*floor(i/3)", "jam:4"), ("i", "vector:4"), ("k", "vector:4"),
])  # fmt: skip
def test_no_pairs_of_updates_are_computed_where_the_element_says_all(
    band: str, mark: str, asked: list[isl.UnionMap]
) -> None:
    """Updates of one element are in one iteration of a loop along elements, and in lanes of their own where the element stays."""
    program = programs.program(ROWS)
    asked.clear()
    _check(_rows(band, mark, "i" if band == "k" else "k"), program)
    assert not asked


def test_updates_of_one_element_by_two_statements_are_compared() -> None:
    """Parts of a sum that go through their elements at different times."""
    text = "input x f32[8]\noutput y f32[8]\nS[i]: 0 <= i < 8: y[i] sum= x[i]\nT[i]: 0 <= i < 8: y[i] sum= x[i]\n"
    scop = programs.scop_of(text)
    pairs, nothing = isl.UnionMap("{ S[i] -> T[i] : 0 <= i < 8 }"), isl.UnionMap("{ }")

    def run(late: str) -> None:
        band = f"schedule: '[{{ S[i] -> [(i)]; T[i] -> [({late})] }}]', child: {{ sequence: [ {{ filter: '{{ S[i] }}' }}, {{ filter: '{{ T[i] }}' }} ] }}"
        tree = f"{{ domain: '{{ S[i] : 0 <= i < 8; T[i] : 0 <= i < 8 }}', child: {{ mark: 'parallel', child: {{ {band} }} }} }}"
        check_tree(isl.Schedule(tree.replace("'", '"')), scop, nothing, pairs)

    run("i")
    with pytest.raises(IllegalScheduleError, match="update one element at once in a parallel loop"):
        run("7 - i")
