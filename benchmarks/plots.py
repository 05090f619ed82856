"""The benchmarks' plots: bars of every contender for each case, as multiples of the physical limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["plot_bars"]


def plot_bars(path: Path, title: str, cases: Sequence[str], heights: Mapping[str, Sequence[float]]) -> None:
    """Smaller is better. heights: per contender one number per case, NaN where there is none.

    Raises:
        ImportError: matplotlib (extra `viz`) is not installed.
    """
    import matplotlib  # heavy, and an extra

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(max(6, 1 + 0.45 * len(cases)), 5), layout="constrained")
    width = 0.8 / len(heights)
    for position, (name, column) in enumerate(heights.items()):
        places = [k + (position - (len(heights) - 1) / 2) * width for k in range(len(cases))]
        axes.bar(places, column, width, label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylabel("times the physical limit")
    axes.set_xticks(range(len(cases)), cases, rotation=60, ha="right")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path)
    pyplot.close(figure)
