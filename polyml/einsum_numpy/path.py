"""The order of a contraction: which terms are multiplied and summed together, one step after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["Path", "find_path"]

Path = tuple[tuple[int, ...], ...]
"""The positions of each step's terms in the list of those that are left; its result goes to the end, as in numpy.einsum_path."""


def find_path(
    terms: Sequence[Sequence[str]], result: Sequence[str], sizes: Mapping[str, int], memory_limit: int | None = None
) -> Path:
    """A good path; one step where there is nothing to gain.

    Args:
        memory_limit: the most elements that an intermediate result may have; None: any number.

    Source: opt_einsum (Smith and Gray, 2018), its "auto": exhaustive for few terms, then branching, then greedy.
    """
    everything = tuple(range(len(terms)))
    if len(terms) <= 2 or {label for term in terms for label in term} == set(result):
        return (everything,)
    import opt_einsum  # only where a call has more than two operands

    symbols = {label: opt_einsum.get_symbol(k) for k, label in enumerate(sizes)}
    left = ",".join("".join(symbols[label] for label in term) for term in terms)
    right = "".join(symbols[label] for label in result)
    shapes = [tuple(sizes[label] for label in term) for term in terms]
    path, _ = opt_einsum.contract_path(
        f"{left}->{right}", *shapes, shapes=True, optimize="auto", memory_limit=memory_limit
    )
    return tuple(tuple(step) for step in path)
