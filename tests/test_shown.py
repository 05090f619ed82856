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
