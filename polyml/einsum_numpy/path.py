"""The order of a contraction: which terms are multiplied and summed together, one step after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyml.errors import ArgumentError

__all__ = ["Path", "find_path", "limited", "with_limit"]

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


def with_limit(optimize: object) -> tuple[object, int | None]:
    """The value of `optimize=` without its bound of intermediates, and that bound: NumPy writes ("greedy", n)."""
    match optimize:
        case (str() as strategy, int() | float() as limit):
            return strategy, None if limit < 0 else int(limit)
    return optimize, None


def limited(optimize: object, memory_limit: object) -> object:
    """`optimize=` and opt_einsum's `memory_limit=` as NumPy writes them in one.

    Raises:
        ArgumentError: no number of elements, or a path that is given already.
    """
    if memory_limit is None:
        return optimize
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, int) or memory_limit < 1:
        raise ArgumentError(f"memory_limit={memory_limit!r} is no number of elements")
    if optimize is False or optimize is None:
        return optimize  # one loop nest has no intermediate
    if optimize is True or (isinstance(optimize, str) and optimize in ("greedy", "optimal")):
        return ("greedy" if optimize is True else optimize, memory_limit)
    raise ArgumentError("memory_limit= does not go with a path", hint="leave it out, or optimize=")
