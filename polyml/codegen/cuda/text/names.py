"""Names in C: those of the program where they are free there, else with an underscore and a number."""

from __future__ import annotations

from polyml.codegen.loops import Allocate, For, Function
from polyml.codegen.rewrite import walk_nodes
from polyml.new_names import fresh

__all__ = ["c_names"]

_RESERVED = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval constexpr constinit
    const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else enum explicit export extern false float for
    friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try
    typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    threadIdx blockIdx blockDim gridDim warpSize main scratch scratch_index NULL INFINITY NAN
    exp expf log logf sqrt sqrtf rsqrt sin sinf cos cosf tanh tanhf erf erff fabs fabsf pow powf fmod fmodf floor floorf ceil ceilf rint rintf
    atan2 atan2f log1p log1pf copysign copysignf y0 y1 yn j0 j1 jn y0f y1f ynf j0f j1f jnf gamma lgamma tgamma min max abs labs signbit isnan isinf unix linux""".split()
)


def c_names(function: Function) -> dict[str, str]:
    """The C name of every variable of a kernel: arguments, sizes, loop variables and scratch memory."""
    taken = set(_RESERVED)
    names: dict[str, str] = {}
    own = [v.name for v in function.arguments] + list(function.sizes)
    for node in walk_nodes(function.body):
        if isinstance(node, For):
            own.append(node.variable)
        elif isinstance(node, Allocate):
            own.append(node.variable.name)
    for name in own:
        if name not in names:
            plain = f"{name}_" if name in _RESERVED or name.startswith(("pm_", "__")) else name
            names[name] = fresh(plain, taken)
    return names
