"""Maps whose values are sums of indices and sizes, made without a text: isl takes four times as long to read one."""

from __future__ import annotations

from functools import lru_cache

import islpy as isl

from polyml.sets.affine import Affine
from polyml.sets.spaces import parameters_text

__all__ = ["map_to"]

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
    places = {name: (_PARAM, position) for position, name in enumerate(sizes)}
    places |= {name: (_IN, position) for position, name in enumerate(indices)}
    zero = isl.Aff.zero_on_domain_space(space)
    functions = isl.AffList.alloc(isl.DEFAULT_CONTEXT, len(values))
    for value in values:
        function = zero.set_constant_val(value.constant) if value.constant else zero
        for name, coefficient in value.terms:
            assert isinstance(name, str), "internal: the value is linear"
            function = function.set_coefficient_val(*places[name], coefficient)
        functions = functions.add(function)
    both = space.add_unnamed_tuple_ui(len(values))
    both = both.set_tuple_name(_OUT, target) if target else both
    return isl.MultiAff.from_aff_list(both, functions).as_map()


@lru_cache(maxsize=512)
def _points(name: str, indices: tuple[str, ...], sizes: tuple[str, ...]) -> isl.Space:
    space = isl.Space.set_alloc(isl.DEFAULT_CONTEXT, len(sizes), len(indices)).set_tuple_name(_SET, name)
    for position, size in enumerate(sizes):
        space = space.set_dim_name(_PARAM, position, size)
    for position, index in enumerate(indices):
        space = space.set_dim_name(_SET, position, index)
    return space
