"""`f.bind(w=..., b=...)` with a GPU as the target: the constants are copied to the device once, and every call uses them there."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyml.bound import prepared_constants, refuse_unnamed, with_more
from polyml.errors import ArgumentError
from polyml.runtime.arguments import Array, bind
from polyml.runtime.cuda.memory import ON_DEVICE
from polyml.runtime.dispatch import shown_signature
from polyml.runtime.foreign.device_arrays import is_device_array, stand_in

if TYPE_CHECKING:
    from polyml.api import Einsum
    from polyml.graph.ir import Graph
    from polyml.lowered import Lowered
    from polyml.runtime.cuda.device import Device
    from polyml.runtime.kernel import Kernel

__all__ = ["BoundOnDevice"]


class BoundOnDevice:
    """A program with constant arguments: called with the others, of the host or of the device.

    Args:
        values: of the constants, by name, on the host. They are copied: what happens to the arrays later changes nothing.

    Raises:
        PolymlError: no such parameter, or a wrong element type or rank; at a call: a constant that the program updates in place.
    """

    def __init__(self, program: Einsum, values: Mapping[str, object]) -> None:
        self.program = program
        self._host = {name: found.value for name, found in prepared_constants(program.program, values).items()}
        self._there: dict[str, Any] | None = None
        self._names = tuple(p.name for p in program.program.parameters if p.name not in self._host)
        self._lock = threading.Lock()
        self.__name__ = program.__name__
        self.__signature__ = shown_signature(self._names)

    def __call__(self, *args: object, **keywords: object) -> Any:
        """Runs the program: results as new arrays of the arguments' kind, or in `out=`.

        Raises:
            DeviceUnavailableError: what a GPU needs is missing. MemoryError: the constants have no room on it.
        """
        given, out = self._bound(args, keywords)
        there = self._on_device(given)
        mine = frozenset(id(value) for value in there.values() if isinstance(value, np.ndarray))
        token = ON_DEVICE.set(ON_DEVICE.get() | mine)
        try:
            return self.program(**given, **there, **({} if out is None else {"out": out}))
        finally:
            ON_DEVICE.reset(token)

    def bind(self, /, *unnamed: object, **constants: object) -> BoundOnDevice:
        """The program with these constant arguments too.

        Raises:
            PolymlError: as `Einsum.bind`, or one of them is bound already.
        """
        refuse_unnamed(self.program.program, unnamed)
        return BoundOnDevice(self.program, with_more(self.program.program, self._host, constants))

    def trace(self, *args: object, **keywords: object) -> Graph:
        """The graph for these arguments."""
        return self.program.trace(**self._bound(args, keywords)[0], **self._host)

    def lower(self, *args: object, **keywords: object) -> Lowered:
        """The program for these arguments at every stage."""
        return self.program.lower(**self._bound(args, keywords)[0], **self._host)

    def compile(self, *args: object, **keywords: object) -> Kernel:
        """The kernel that a call with these arguments runs, with the constants among its own."""
        return self.program.compile(**self._bound(args, keywords)[0], **self._host)

    def explain(self, *args: object, **keywords: object) -> str:
        """What was chosen for these arguments, what was refused, and why."""
        return self.lower(*args, **keywords).explain()

    def _bound(self, args: Sequence[object], keywords: Mapping[str, object]) -> tuple[dict[str, object], object]:
        values, out = bind(self.program.__name__, self._names, args, keywords)
        return dict(zip(self._names, values, strict=True)), out

    def _on_device(self, given: Mapping[str, object]) -> dict[str, Any]:
        """The constants as a call takes them: arrays as views of device memory, made at the first call."""
        if self._there is None:
            with self._lock:
                if self._there is None:
                    from polyml.runtime.cuda.pycuda_device import the_device

                    self._refuse_updated(given)
                    device = the_device()
                    self._there = {name: self._copied(device, value) for name, value in self._host.items()}
        return self._there

    def _copied(self, device: Device, value: object) -> object:
        if not isinstance(value, np.ndarray) or value.ndim == 0 or not value.size:
            return value
        queue = device.queue()
        address = queue.allocate(value.nbytes)
        queue.to_device(address, value)
        queue.close()
        view = _view(address, value)
        weakref.finalize(self, _free, device, address).atexit = False
        return view

    def _refuse_updated(self, given: Mapping[str, object]) -> None:
        shown = {name: stand_in(value) if is_device_array(value) else value for name, value in given.items()}
        graph = self.program.trace(**shown, **self._host)
        updated = {item.tensor.name for item in graph.inputs if item.written}
        for parameter in self.program.program.parameters:
            if parameter.name in self._host and parameter.name in updated:
                raise ArgumentError(
                    f"{self.program.__name__} updates {parameter.name} in place, and it is bound as a constant",
                    span=parameter.span,
                    hint=f"leave {parameter.name} out of bind, and pass it with each call",
                )

    def __repr__(self) -> str:
        return f"<polyml.einsum program {self.__name__} with constant {', '.join(self._host)}>"


def _view(address: int, like: Array) -> Array:
    """An array of device memory: nothing but its address, shape and type may be looked at."""
    memory: Any = (ctypes.c_char * like.nbytes).from_address(address)
    view = np.frombuffer(memory, like.dtype).reshape(like.shape)
    view.flags.writeable = False
    return view


def _free(device: Device, address: int) -> None:
    queue = device.queue()
    queue.free(address)
    queue.close()
