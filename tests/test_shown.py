"""Every stage's value shows itself: as text by `str`, as HTML and LaTeX in a notebook."""

from __future__ import annotations

import numpy as np

import polyml
from polyml.shown import Shown

SOFTMAX = """
def softmax(x: f32["N M"]):
    e[n, m] = exp(x[n, m] - max[k](x[n, k]))
    y[n, m] = e[n, m] / sum[k](e[n, k])
    return y
"""


def test_every_stage_shows_itself() -> None:
    softmax, x = polyml.einsum(SOFTMAX), np.ones((7, 5), np.float32)
    graph, lowered = softmax.trace(x), softmax.lower(x)
    (region,), (function,) = lowered.stages.regions, lowered.stages.functions
    assert str(graph) == lowered.text("graph")
    assert str(region.scop) == lowered.text("domains")
    assert str(region.schedule) == lowered.text("schedule")
    assert str(function) == lowered.text("loops")
    assert lowered.text("dependences").endswith(str(region.dependences))
    for value in (graph, region.scop, region.dependences, region.schedule, function):
        assert isinstance(value, Shown)
        form = value._repr_html_()
        assert form.startswith(("<table", "<pre"))
        assert form.endswith(("</table>", "</pre>"))
    assert "<code>e[n, m] = exp(x[n, m] - e_max[n])</code>" in graph._repr_html_()
    assert r"\exp" in str(graph._repr_latex_())
    assert region.scop._repr_latex_() is None
    assert "0 &lt;= n" in region.scop._repr_html_()


def test_accesses_are_maps_on_the_domains() -> None:
    histogram = polyml.einsum("""
def histogram(x: i32["N"], w: f32["N"]):
    h: f32["16"] = 0
    if 1 <= n < N:
        h[x[n]] += w[n - 1]
    return h
""")
    text = histogram.lower(np.zeros(9, np.int32), np.ones(9, np.float32)).text("accesses")
    assert text.splitlines()[-6:] == [
        "  { S_h_1[n] : 0 < n <= 8 }",
        "    reads: { S_h_1[n] -> h_1[any0] : 0 <= any0 <= 15 }",
        "    reads: { S_h_1[n] -> w[-1 + n] }",
        "    reads: { S_h_1[n] -> x[n] }",
        "    may write: { S_h_1[n] -> h_1[any0] : 0 <= any0 <= 15 }",
        "    written order: { S_h_1[n] -> [1, n] }",
    ]


def test_a_lowered_program_is_short_in_a_console_and_whole_in_a_notebook() -> None:
    softmax = polyml.einsum(SOFTMAX, target=polyml.Target("x86-64-v3"))
    assert "e[n, m] = exp(x[n, m] - max[k](x[n, k]))" in softmax._repr_html_()
    lowered = softmax.lower(np.ones((7, 50), np.float32))
    assert repr(lowered).startswith(
        "<polyml.Lowered softmax: 1 region; show(..) prints graph, plan, domains, accesses,"
    )
    shown = lowered._repr_html_()
    order = ["graph", "domains", "accesses", "dependences", "schedule", "decisions", "loops"]
    places = [shown.index(f"<summary>{name}</summary>") for name in order]
    assert places == sorted(places)
    assert shown.count("<details open>") == 3
    assert "S_y[n, m] -&gt; y[n, m]" in shown


def test_decisions_say_whose_loop_they_are_about() -> None:
    lowered = polyml.einsum(SOFTMAX, target=polyml.Target("x86-64-v3")).lower(np.ones((7, 50), np.float32))
    told = lowered.explain().splitlines()
    assert told[0] == "softmax: 4 equations in 1 region"
    assert "  vector: m (e, y_sum): 8 lanes, 2 vectors at once, reduces y_sum in lanes" in told


def test_the_start_of_an_argmax_is_of_both_of_its_arrays() -> None:
    text = polyml.einsum('def f(x: f32["N K"]):\n    i[n] = argmax[k](x[n, k])\n    return i\n')
    assert "(i_best[n], i[n]) = (0, -1)" in text.lower(np.ones((2, 3), np.float32)).text("domains")
