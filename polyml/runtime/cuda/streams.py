"""Order between other libraries' streams and ours, made on the device: the host waits for nothing.

pycuda takes only streams that it has made itself. So kernels run on one of those, behind an event on the caller's stream, and the caller's stream goes on behind an event
on ours: its work before a call is before the kernels, its work after the call after them. These four functions of CUDA's driver take streams by their handles.

Source: NVIDIA, CUDA Driver API, "Event Management", "Stream Management".
"""

from __future__ import annotations

import ctypes
import functools

from polyml.errors import DeviceUnavailableError

__all__ = ["behind", "driver_is_there"]

WITHOUT_TIMES = 2
"""CU_EVENT_DISABLE_TIMING"""


def behind(later: int, earlier: int) -> None:
    """All that comes to the stream `later` from now on waits for all that is on `earlier` now; by their handles, in the current context.

    Raises:
        DeviceUnavailableError: the driver refuses, such as for a handle that is none.
    """
    event = ctypes.c_void_p()
    _do("cuEventCreate", ctypes.byref(event), ctypes.c_uint(WITHOUT_TIMES))
    try:
        _do("cuEventRecord", event, ctypes.c_void_p(earlier))
        _do("cuStreamWaitEvent", ctypes.c_void_p(later), event, ctypes.c_uint(0))
    finally:
        _do("cuEventDestroy_v2", event)  # the driver keeps it until it has come


def driver_is_there() -> bool:
    """Whether CUDA's driver can be loaded."""
    try:
        _driver()
    except OSError:
        return False
    return True


def _do(name: str, *arguments: object) -> None:
    status = _driver()[name](*arguments)
    if status != 0:
        raise DeviceUnavailableError(
            f"CUDA's driver cannot put streams in order: {name} fails with error {status}",
            hint="is the stream of an argument still alive, and of the first device?",
        )


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
