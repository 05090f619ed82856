"""The first half of an entry point: arguments become addresses and sizes, or the call goes to the block `slow`."""

from __future__ import annotations

from dataclasses import field
from typing import assert_never

from polyml.dtypes import DType
from polyml.einsum_frontend.symbolic_ints import LARGEST_INT
from polyml.records import dataclass
from polyml.runtime.entry.layout import ArrayHeader
from polyml.runtime.ir_text import IrWriter
from polyml.runtime.signature import ArrayParameter, KernelSignature, ScalarParameter, SizeParameter
from polyml.sets.affine import Affine, affine
from polyml.sets.weighed import Term

__all__ = ["OUT", "Checked", "check_arguments", "check_out", "dtypes_of"]

MOST_OUTS = 16
"""Results up to which the entry point looks at each pair of arrays that `out=` gives, and at each with an argument: what binding the weights of a network fills once has hundreds, and is not asked for with `out=`."""

OUT = " out"
"""The name of what the keyword gives, in the tables: no parameter has it, nor what begins with it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One entry point while it is written; the tables map names to IR values.

    objects: the argument objects. numbers: addresses of converted scalars. sizes: values of symbolic sizes. data: first elements of arrays.
    """

    ir: IrWriter
    signature: KernelSignature
    header: ArrayHeader
    objects: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)

    @property
    def arrays(self) -> list[ArrayParameter]:
        return [p for p in self.signature.parameters if isinstance(p, ArrayParameter)]

    def own_object(self, position: int) -> str:
        """The object at `position` of `self`."""
        return self.ir.load("ptr", "%self", self.header.tuple_items + 8 * position)

    def own_dtype(self, dtype: DType) -> str:
        """The dtype object, from `self`."""
        return self.own_object(3 + dtypes_of(self.signature).index(dtype))

    @property
    def takes_out(self) -> bool:
        """Whether the entry point takes `out=` itself: there are new arrays, few enough for each of them to be compared with all others, and no parameter of that name."""
        few = 0 < len(self.signature.results) <= MOST_OUTS
        return few and all(p.name != "out" for p in self.signature.parameters)


def dtypes_of(signature: KernelSignature) -> list[DType]:
    """The element types of its arrays and results, in the order of `self`."""
    used = {p.dtype for p in signature.parameters if isinstance(p, ArrayParameter)} | {
        r.dtype for r in signature.results
    }
    return sorted(used, key=lambda dtype: dtype.name)


def check_arguments(signature: KernelSignature, header: ArrayHeader) -> Checked:
    """Writes the checks; past them every array has the signature's layout and may be used at once with the others."""
    call = Checked(IrWriter(), signature, header)
    _reserve(call)
    _check_kinds(call)
    _read_numbers(call)
    for parameter in call.arrays:
        _check_layout(call, parameter)
        call.data[parameter.name] = call.ir.load("ptr", call.objects[parameter.name], header.data)
    _check_overlap(call)
    return call


def check_out(call: Checked) -> list[str]:
    """Writes the checks of what is given as `out=`: per result an array of its kind, shape and layout, in no memory of an argument or of one another.

    Returns:
        The arrays' objects, in the order of the results.
    """
    outs = [
        ArrayParameter(name=f"{OUT} {k}", dtype=r.dtype, shape=r.shape, strides=r.strides, written=True)
        for k, r in enumerate(call.signature.results)
    ]
    call.objects.update(zip((out.name for out in outs), _places(call), strict=True))
    for out in outs:
        _check_kind(call, out)
    for out in outs:
        _check_layout(call, out)
        call.data[out.name] = call.ir.load("ptr", call.objects[out.name], call.header.data)
    _apart(call, [(out, other) for k, out in enumerate(outs) for other in (*call.arrays, *outs[:k])])
    return [call.objects[out.name] for out in outs]


def _places(call: Checked) -> list[str]:
    """The objects of `out=`: the one that is given, or the items of a plain tuple where there are several results."""
    ir, header, given, count = call.ir, call.header, call.objects[OUT], len(call.signature.results)
    if count == 1:
        return [given]
    tuples = ir.load("ptr", "%self", header.type)  # `self` is one
    ir.go_on_if(ir.value(f"icmp eq ptr {ir.load('ptr', given, header.type)}, {tuples}"))
    ir.go_on_if(ir.value(f"icmp eq i64 {ir.load('i64', given, header.tuple_size)}, {count}"))
    return [ir.load("ptr", given, header.tuple_items + 8 * k, "out") for k in range(count)]


def _reserve(call: Checked) -> None:
    """All storage of the call, in the first block, so that it is static."""
    ir, signature = call.ir, call.signature
    ir.label("start")
    for parameter in signature.parameters:
        if not isinstance(parameter, ArrayParameter):
            ir.do(f"%number.{parameter.name} = alloca [2 x i64], align 16")
    rank = max((len(r.shape) for r in signature.results), default=0)
    ir.do(f"%dims = alloca [{max(1, rank)} x i64], align 8")
    ir.do(f"%strides = alloca [{max(1, rank)} x i64], align 8")
    ir.do(f"%arrays = alloca [{max(1, len(signature.buffers) + len(signature.results))} x ptr], align 8")
    ir.do(f"%sizes = alloca [{max(1, len(signature.sizes))} x i64], align 8")


def _check_kinds(call: Checked) -> None:
    """Number of arguments, no keyword but `out`; type, dtype, rank and flags of arrays."""
    ir, signature = call.ir, call.signature
    ir.go_on_if(ir.value(f"icmp eq i64 %nargs, {len(signature.parameters)}"))
    plain = ir.value("icmp eq ptr %kwnames, null")
    if call.takes_out:
        ir.do("br label %keywords")
        ir.label("keywords")
        ir.do(f"br i1 {plain}, label %bound, label %named")
        ir.label("named")
        single = ir.value(f"icmp eq i64 {ir.load('i64', '%kwnames', call.header.tuple_size)}, 1")
        ir.go_on_if(single)
        name = ir.load("ptr", "%kwnames", call.header.tuple_items)
        ir.do(f"%is.out = icmp eq ptr {name}, {call.own_object(2)}")
        given = ir.load("ptr", "%args", 8 * len(signature.parameters), "out")
        ir.do("br i1 %is.out, label %with.out, label %slow")
        ir.label("with.out")
        ir.do("br label %bound")
        ir.label("bound")
        call.objects[OUT] = ir.value(f"phi ptr [ null, %keywords ], [ {given}, %with.out ]", "out")
    else:
        ir.go_on_if(plain)
    for k, parameter in enumerate(signature.parameters):
        call.objects[parameter.name] = ir.load("ptr", "%args", 8 * k, "object")
    for parameter in call.arrays:
        _check_kind(call, parameter)


def _check_kind(call: Checked, parameter: ArrayParameter) -> None:
    flags = call.header.aligned | (call.header.writeable if parameter.written else 0)
    thing, dtype = call.objects[parameter.name], call.own_dtype(parameter.dtype)
    arguments = f"ptr {thing}, ptr {dtype}, i32 {len(parameter.shape)}, i32 {flags}"
    call.ir.go_on_if(call.ir.value(f"call i1 @polyml_is_array({arguments})"))


def _read_numbers(call: Checked) -> None:
    """Scalars are converted and stored; symbolic sizes get their values, specialized ones are compared."""
    ir, signature = call.ir, call.signature
    for parameter in signature.parameters:
        match parameter:
            case ArrayParameter():
                pass
            case ScalarParameter(name=name, dtype=dtype):
                call.numbers[name] = f"%number.{name}"
                _convert_scalar(ir, call.objects[name], call.numbers[name], dtype)
            case SizeParameter(name=name, value=value):
                ir.go_on_if(ir.value(f"call i1 @polyml_number_i64(ptr {call.objects[name]}, ptr %number.{name})"))
                number = ir.value(f"load i64, ptr %number.{name}")
                if value is None:
                    call.sizes[name] = number
                    shifted = ir.value(f"add i64 {number}, {LARGEST_INT}")
                    ir.go_on_if(ir.value(f"icmp ule i64 {shifted}, {2 * LARGEST_INT}"))
                else:
                    ir.go_on_if(ir.value(f"icmp eq i64 {number}, {value}"))
            case _:
                assert_never(parameter)
    for name, source in signature.size_sources().items():
        if source.dimension is not None:
            dims = ir.load("ptr", call.objects[signature.parameters[source.position].name], call.header.dimensions)
            extent = ir.load("i64", dims, 8 * source.dimension, "size")
            call.sizes[name] = ir.affine((affine("extent") - source.offset) // source.factor, {"extent": extent})
    for needed in signature.requires:
        ir.go_on_if(ir.value(f"icmp sge i64 {ir.affine(needed, call.sizes)}, 0"))
    if signature.suits:
        ir.go_on_if(ir.all_of(_weighed(call)))


def _weighed(call: Checked) -> list[str]:
    """The comparisons of the signature, in double precision: products of sizes may be larger than integers are, and need not be exact."""
    ir = call.ir
    terms = dict.fromkeys(t for weighed in call.signature.suits for t in (*weighed.less, *weighed.more))
    extents = dict.fromkeys(extent for _, factors in terms for extent in factors)
    numbers = {e: ir.value(f"sitofp i64 {ir.affine(e, call.sizes)} to double") for e in extents}
    products: dict[Term, str] = {}
    for factor, factors in terms:
        value = f"{factor}.0"
        for extent in factors:
            value = ir.value(f"fmul double {value}, {numbers[extent]}")
        products[factor, factors] = value

    def summed(parts: tuple[Term, ...]) -> str:
        value = "0.0"
        for part in parts:
            value = ir.value(f"fadd double {value}, {products[part]}")
        return value

    return [ir.value(f"fcmp ole double {summed(w.less)}, {summed(w.more)}") for w in call.signature.suits]


def _convert_scalar(ir: IrWriter, thing: str, address: str, dtype: DType) -> None:
    """Stores the Python number `thing` as `dtype` at `address`; slow when it is something else or does not fit."""
    if dtype.part != dtype:  # half precision and complex numbers
        ir.go_on_if(ir.value(f"call i1 @polyml_number_{dtype.name}(ptr {thing}, ptr {address})"))
        return
    kind = {"f": "f64", "i": "i64", "u": "u64", "b": "bool"}[dtype.kind]
    ir.go_on_if(ir.value(f"call i1 @polyml_number_{kind}(ptr {thing}, ptr {address})"))
    if dtype.is_float and dtype.bits == 32:
        wide = ir.value(f"load double, ptr {address}")
        ir.do(f"store float {ir.value(f'fptrunc double {wide} to float')}, ptr {address}")
    elif dtype.is_integer and dtype.bits < 64:
        wide = ir.value(f"load i64, ptr {address}")
        narrow = ir.value(f"trunc i64 {wide} to i{dtype.bits}")
        back = ir.value(f"{'sext' if dtype.kind == 'i' else 'zext'} i{dtype.bits} {narrow} to i64")
        ir.go_on_if(ir.value(f"icmp eq i64 {back}, {wide}"))
        ir.do(f"store i{dtype.bits} {narrow}, ptr {address}")


def _check_layout(call: Checked, parameter: ArrayParameter) -> None:
    """Extents and strides; the stride of an extent of 1, and all of an empty array, may be anything."""
    if not parameter.shape:
        return
    ir, thing = call.ir, call.objects[parameter.name]
    dims = ir.load("ptr", thing, call.header.dimensions)
    extents = [ir.affine(extent, call.sizes) for extent in parameter.shape]
    conditions = [ir.value(f"icmp eq i64 {ir.load('i64', dims, 8 * k)}, {extent}") for k, extent in enumerate(extents)]
    if "0" not in extents:
        strides = ir.load("ptr", thing, call.header.strides)
        for k, (extent, stride) in enumerate(zip(extents, _strides(call, parameter), strict=True)):
            if extent == "1":
                continue
            same = ir.value(f"icmp eq i64 {ir.load('i64', strides, 8 * k)}, {stride}")
            if not parameter.shape[k].is_constant:
                same = ir.value(f"or i1 {same}, {ir.value(f'icmp eq i64 {extent}, 1')}")
            conditions.append(same)
    ir.go_on_if(ir.all_of(conditions))


def _strides(call: Checked, parameter: ArrayParameter) -> list[str]:
    """The expected strides in bytes, as IR values."""
    if parameter.strides is not None:
        return [str(stride * parameter.dtype.itemsize) for stride in parameter.strides]
    return [_bytes(call, parameter.shape[k + 1 :], parameter.dtype) for k in range(len(parameter.shape))]


def _bytes(call: Checked, extents: tuple[Affine, ...], dtype: DType) -> str:
    """The size of a contiguous block."""
    constant, value = dtype.itemsize, ""
    for extent in extents:
        if extent.is_constant:
            constant *= extent.constant
        else:
            factor = call.ir.affine(extent, call.sizes)
            value = call.ir.value(f"mul i64 {value}, {factor}") if value else factor
    return call.ir.value(f"mul i64 {value}, {constant}") if value else str(constant)


def _check_overlap(call: Checked) -> None:
    arrays = call.arrays
    pairs = [(left, right) for k, left in enumerate(arrays) for right in arrays[k + 1 :]]
    _apart(call, [(left, right) for left, right in pairs if left.written or right.written])


def _apart(call: Checked, pairs: list[tuple[ArrayParameter, ArrayParameter]]) -> None:
    """The address ranges of the arrays of each pair do not meet; where they may, the slow path looks closer."""
    if not pairs:
        return
    ir = call.ir
    ranges = {p.name: _address_range(call, p) for pair in pairs for p in pair}
    apart: list[str] = []
    for left, right in pairs:
        (first, end), (other_first, other_end) = ranges[left.name], ranges[right.name]
        before = ir.value(f"icmp ule i64 {end}, {other_first}")
        behind = ir.value(f"icmp ule i64 {other_end}, {first}")
        apart.append(ir.value(f"or i1 {before}, {behind}"))
    ir.go_on_if(ir.all_of(apart))


def _address_range(call: Checked, parameter: ArrayParameter) -> tuple[str, str]:
    """First byte, and one past the last."""
    ir = call.ir
    base = ir.value(f"ptrtoint ptr {call.data[parameter.name]} to i64")
    if parameter.strides is None:
        return base, ir.value(f"add i64 {base}, {_bytes(call, parameter.shape, parameter.dtype)}")
    low, high = Affine(), affine(parameter.dtype.itemsize)
    for extent, stride in zip(parameter.shape, parameter.strides, strict=True):
        reach = (extent - 1) * (stride * parameter.dtype.itemsize)
        if stride < 0:
            low += reach
        else:
            high += reach
    first = ir.value(f"add i64 {base}, {ir.affine(low, call.sizes)}")
    return first, ir.value(f"add i64 {base}, {ir.affine(high, call.sizes)}")
