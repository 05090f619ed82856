"""A Python function object from the address of an emitted entry point."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["builtin_function"]

METH_FASTCALL, METH_KEYWORDS = 0x0080, 0x0002


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("ml_name", ctypes.c_char_p),
        ("ml_meth", ctypes.c_void_p),
        ("ml_flags", ctypes.c_int),
        ("ml_doc", ctypes.c_char_p),
    )


def builtin_function(name: str, address: int, objects: tuple[object, ...]) -> Callable[..., object]:
    """The built-in function object of an entry point `ptr (ptr self, ptr args, i64 nargs, ptr kwnames)`.

    Args:
        objects: its `self`, kept alive by the function: what its code reads, and the owner of the code itself.
    """
    definition = _MethodDef(name.encode(), address, METH_FASTCALL | METH_KEYWORDS, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p]
    function: Callable[..., object] = make(ctypes.byref(definition), (*objects, definition), None)
    return function
