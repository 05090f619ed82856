"""Arrays that are on the device already (CuPy, torch, JAX, pycuda, whatever has `__cuda_array_interface__` or speaks DLPack): used where they are, and results are new ones of
that kind.

A call sees stand-ins: NumPy arrays over the device's addresses, of which nothing is ever read here but address, shape and type. Kernels run behind what the arrays'
streams have, and these go on behind the kernels; the call itself returns at once. JAX knows no streams of others: for its arrays the call waits.

Source: the CUDA Array Interface, version 3 (Numba's documentation).
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyml.errors import ArgumentError
from polyml.runtime.arguments import Array, prepare, share_memory
from polyml.runtime.cuda.memory import ON_DEVICE, STREAMS
from polyml.runtime.cuda.program import CudaKernel
from polyml.runtime.foreign.arrays import seen
from polyml.runtime.foreign.dlpack_device import DeviceTensor, dlpack_tensor, speaks_dlpack

if TYPE_CHECKING:
    from polyml.runtime.dispatch import Dispatcher

__all__ = ["MAKERS", "call_on_device", "is_device_array", "seen_anywhere", "stand_in"]

Maker = Callable[[Any, tuple[int, ...], np.dtype[Any]], object]
"""(an array of the kind, shape, element type) -> a new one."""


def _cupy(like: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> object:
    return importlib.import_module("cupy").empty(shape, dtype)


def _torch(like: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> object:
    torch = importlib.import_module("torch")
    return torch.empty(shape, dtype=getattr(torch, dtype.name), device=like.device)


def _jax(like: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> object:
    """New, and seen by nobody yet: so it can be filled although JAX's arrays never change."""
    return importlib.import_module("jax.numpy").empty(shape, dtype).block_until_ready()


def _pycuda(like: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> object:
    return importlib.import_module("pycuda.gpuarray").empty(shape, dtype)


MAKERS: dict[str, Maker] = {"cupy": _cupy, "torch": _torch, "pycuda": _pycuda, "jax": _jax, "jaxlib": _jax}
"""By the package that the array's class comes from."""

WITHOUT_STREAMS = ("jax", "jaxlib")
"""Libraries that take every array as finished."""


def call_on_device(program: Dispatcher, args: Sequence[object], keywords: Mapping[str, object]) -> object:
    """The call with device arrays, or NotImplemented when none of the arguments is one.

    Raises:
        ArgumentError: a strided array; arrays of host and device together; two that overlap and one of them is updated; results of an unknown kind.
    """
    out = keywords.get("out")
    given = [*args, *(v for k, v in keywords.items() if k != "out"), *(out if isinstance(out, tuple) else (out,))]
    owners = [value for value in given if is_device_array(value)]
    if not owners:
        return NotImplemented
    if any(isinstance(value, np.ndarray) and value.ndim and id(value) not in ON_DEVICE.get() for value in given):
        raise ArgumentError("some arrays are on the device and some are not", hint="copy all of them there, or none")
    pairs = [(stand_in(owner), owner) for owner in owners]
    token = ON_DEVICE.set(ON_DEVICE.get() | {id(view) for view, _ in pairs})
    try:
        return _run(program, args, keywords, pairs)
    finally:
        ON_DEVICE.reset(token)


def _run(
    program: Dispatcher, args: Sequence[object], keywords: Mapping[str, object], pairs: list[tuple[Array, object]]
) -> object:
    views = {id(owner): view for view, owner in pairs}
    plain = {k: views.get(id(v), v) for k, v in keywords.items() if k != "out"}
    positional = [views.get(id(value), value) for value in args]
    kernel = program.kernel_for(*positional, **plain)
    assert isinstance(kernel, CudaKernel), "internal: device arrays for a kernel of another target"
    values = [*positional, *(plain[name] for name in kernel.names[len(positional) :])]
    prepared = [prepare(wanted, value) for wanted, value in zip(kernel.wanted, values, strict=True)]
    _refuse_overlaps(kernel, values)
    places = keywords.get("out")
    if places is None:
        places = tuple(_made(pairs[0][1], *result) for result in kernel.results_of(prepared))
    places = places if isinstance(places, tuple) else (places,)
    made = [(stand_in(place, new=True), place) for place in places]
    owners = [owner for _, owner in [*pairs, *made]]
    tokens = (
        ON_DEVICE.set(ON_DEVICE.get() | {id(view) for view, _ in made}),
        STREAMS.set(frozenset(map(_stream_of, owners))),
    )
    try:
        found = kernel.run(prepared, tuple(view for view, _ in made) if made else None)
        if any(_package(owner) in WITHOUT_STREAMS for owner in owners):
            kernel.device.finish()
    finally:
        ON_DEVICE.reset(tokens[0])
        STREAMS.reset(tokens[1])
    back = {id(view): owner for view, owner in [*pairs, *made]}
    if isinstance(found, tuple):
        return tuple(back.get(id(item), item) for item in found)
    return back.get(id(found), found)


def seen_anywhere(value: object) -> Array:
    """A number, list or array of the host as a NumPy array; an array of the device as its stand-in, of which type and shape may be asked."""
    return stand_in(value) if is_device_array(value) else seen(value)


def stand_in(value: Any, *, new: bool = False) -> Array:
    """A NumPy array with the address, shape and type of a device array. Its elements must not be touched.

    Args:
        new: it was made for this call, so that it can be written whatever its library says.

    Raises:
        ArgumentError: it is not contiguous, or of an unknown element type.
    """
    tensor = _described(value)
    dtype, size = tensor.dtype, tensor.dtype.itemsize * int(np.prod(tensor.shape, dtype=np.int64))
    expected = dtype.itemsize
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.strides or ()), strict=False):
        if extent > 1 and stride != expected and size:
            raise ArgumentError("a device array is not contiguous", hint="pass a contiguous copy of it")
        expected *= extent
    if size == 0:
        return np.empty(tensor.shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(tensor.address)
    memory.owner = tensor.owner  # the view keeps it
    view = np.frombuffer(memory, dtype).reshape(tensor.shape)
    view.flags.writeable = new or tensor.writeable
    return view


def _described(value: Any) -> DeviceTensor:
    interface = _interface(value)
    if interface is None:
        return dlpack_tensor(value)
    address, read_only = interface["data"]
    strides = interface.get("strides")
    dtype = np.dtype(interface["typestr"])
    return DeviceTensor(address, tuple(interface["shape"]), dtype, strides, not read_only, value)


def _interface(value: Any) -> Any:
    """The CUDA Array Interface; None where there is none, or none for this element type (torch's and JAX's bf16)."""
    try:
        return value.__cuda_array_interface__
    except (AttributeError, TypeError, RuntimeError):
        return None


def _stream_of(owner: Any) -> int:
    """The stream on which an array's library works with it: as its interface says, and PyTorch's current one, which its interface keeps to itself."""
    stream = (_interface(owner) or {}).get("stream")
    if stream is None and _package(owner) == "torch":
        stream = importlib.import_module("torch").cuda.current_stream(owner.device).cuda_stream
    return int(stream or 0)


def _package(owner: object) -> str:
    return type(owner).__module__.partition(".")[0]


def is_device_array(value: object) -> bool:
    """Whether it is another library's array in a device's memory."""
    if isinstance(value, np.ndarray | np.generic | int | float):
        return False
    return _interface(value) is not None or speaks_dlpack(value)


def _made(like: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> object:
    maker = MAKERS.get(_package(like))
    if maker is None:
        raise ArgumentError(
            f"results cannot be made as {type(like).__name__}", hint="pass out= with device arrays for them"
        )
    return maker(like, shape, dtype)


def _refuse_overlaps(kernel: CudaKernel, values: Sequence[object]) -> None:
    """An updated array may share memory with no other, as on the host."""
    arrays = [
        (value, written) for value, written in zip(values, kernel.written, strict=True) if isinstance(value, np.ndarray)
    ]
    for target, written in arrays:
        if written and any(other is not target and share_memory(target, other) for other, _ in arrays):
            raise ArgumentError("an updated device array shares memory with another argument", hint="pass a copy")
