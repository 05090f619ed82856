"""Graphs as text, HTML and LaTeX."""

from __future__ import annotations

from polyml.graph.printer import graph_html, graph_latex, graph_text
from tests.graph.graph_text import graph

TEXT = """
    sizes(N)
    x: f32[N, 6]
    w: f32[6, 5]
    b: f32[5]
    n: i64
    bad = n < 0
    check(bad)
    t[i, m] = sum[k](x[i, k] * w[k, m])
    y[i, m] = max(t[i, m] + b[m], 0.0) / -(b[m] - 1.0) ** 2.0
    if m >= 1 and m <= i: z(y)[i, m] += max[k](x[i, k] - w[k, m])
    for s in range(4, 0, -2):
        carry(z, h, h2, h3)
        h2[i, m] = where(not (i + s < 3), h[i, m], f32(2 * i)) - (h[i, m] - b[m])
    return h3
"""


def test_text() -> None:
    assert graph_text(graph(TEXT, "f")).splitlines() == [
        "f(N: int, x: f32[N, 6], w: f32[6, 5], b: f32[5], n: i64):",
        "    bad = n < 0",
        "    raise IndexError if bad",
        "    t[i, m] = sum_k x[i, k] * w[k, m]   for 0 <= i < N and 0 <= m < 5 and 0 <= k < 6",
        "    y[i, m] = max(t[i, m] + b[m], 0) / -(b[m] - 1) ** 2   for 0 <= i < N and 0 <= m < 5",
        "    z[i, m] max= max_k (x[i, k] - w[k, m])   in y   for 0 <= i < N and 0 < m < 5 and m <= i and 0 <= k < 6",
        "    for s in range(4, 0, -2):",
        "        h = z, then h2",
        "        h2[i, m] = where(not i + s < 3, h[i, m], f32(2 * i)) - (h[i, m] - b[m])   for 0 <= i < N and 0 <= m < 5",
        "    h3 = h at the end",
        "    return h3",
    ]


def test_latex() -> None:
    text = graph_latex(graph(TEXT, "f"))
    assert text.startswith("\\begin{aligned}\n")
    assert text.endswith("\n\\end{aligned}")
    assert r"t_{i, m} &= \sum_{k} x_{i, k} \, w_{k, m}" in text
    assert r"\frac{\max\left(t_{i, m} + b_{m}, 0\right)}{-\left(b_{m} - 1\right)^{2}}" in text
    assert r"\text{require } \lnot \mathit{bad}" in text
    assert text.count("{") == text.count("}")


def test_html_escapes_and_has_a_row_per_equation() -> None:
    text = graph_html(graph(TEXT, "f"))
    assert (
        text.count("<tr>") == 1 + 4 + 8
    )  # head, inputs, ops (a loop has its line, its body and a line per carried tensor)
    assert "n &lt; 0" in text
    assert "<code>t[i, m] = sum_k x[i, k] * w[k, m]</code>" in text
