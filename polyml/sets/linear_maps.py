"""Functions and maps of indices and sizes, made without a text: isl takes four times as long to read one."""

from __future__ import annotations

from functools import lru_cache

import islpy as isl

from polyml.sets.affine import Affine, FloorDiv
from polyml.sets.spaces import parameters_text

__all__ = ["function_of", "map_to"]

_IN, _OUT, _PARAM, _SET = isl.dim_type.in_, isl.dim_type.out, isl.dim_type.param, isl.dim_type.set


@lru_cache(maxsize=512)
def map_to(
    source: str, indices: tuple[str, ...], target: str, values: tuple[Affine, ...], sizes: tuple[str, ...] = ()
) -> isl.Map:
    """`[sizes] -> { source[indices] -> target[values] }`; from its text where a value has divisions or extrema. target: "" for values without a name."""
    if not all(value.is_linear for value in values):
        texts = ", ".join(value.isl_text() for value in values)
        return isl.Map(f"{parameters_text(sizes)}{{ {source}[{', '.join(indices)}] -> {target}[{texts}] }}")
    space = _points(source, indices, sizes)
    functions = isl.AffList.alloc(isl.DEFAULT_CONTEXT, len(values))
    for value in values:
        functions = functions.add(function_of(source, indices, value, sizes))
    both = space.add_unnamed_tuple_ui(len(values))
    both = both.set_tuple_name(_OUT, target) if target else both
    return isl.MultiAff.from_aff_list(both, functions).as_map()


@lru_cache(maxsize=512)
def function_of(source: str, indices: tuple[str, ...], value: Affine, sizes: tuple[str, ...] = ()) -> isl.Aff:
    """`[sizes] -> { source[indices] -> [value] }`, of a value without extrema."""
    function = isl.Aff.zero_on_domain_space(_points(source, indices, sizes)).set_constant_val(value.constant)
    for atom, coefficient in value.terms:
        if isinstance(atom, FloorDiv):
            numerator = function_of(source, indices, atom.numerator, sizes)
            function = function.add(numerator.scale_down_val(atom.denominator).floor().scale_val(coefficient))
        else:
            assert isinstance(atom, str), "internal: the value has no extrema"
            place = (_IN, indices.index(atom)) if atom in indices else (_PARAM, sizes.index(atom))
            function = function.set_coefficient_val(*place, coefficient)
    return function


@lru_cache(maxsize=512)
def _points(name: str, indices: tuple[str, ...], sizes: tuple[str, ...]) -> isl.Space:
    space = isl.Space.set_alloc(isl.DEFAULT_CONTEXT, len(sizes), len(indices)).set_tuple_name(_SET, name)
    for position, size in enumerate(sizes):
        space = space.set_dim_name(_PARAM, position, size)
    for position, index in enumerate(indices):
        space = space.set_dim_name(_SET, position, index)
    return space
