"""Small straight code to object files, fast; and a Python function object from the address of an emitted entry point."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import llvmlite.binding as llvm

from polyml.codegen.llvm.machine import Machine, compiler, host
from polyml.runtime.cache.files import store
from polyml.runtime.cache.fingerprint import digest, versions

__all__ = ["builtin_function", "compile_plainly"]

METH_FASTCALL, METH_KEYWORDS = 0x0080, 0x0002


@functools.cache
def _plain_target_machine(machine: Machine) -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=0, reloc="pic", codemodel="default"
    )


def compile_plainly(text: str, *, keep: bool = False) -> bytes:
    """An object file for this machine without any optimization: a sixth of the time, for code that runs once a call and is in SSA form already.

    Args:
        keep: look in the disk cache first, and put the result there.
    """
    kept = store() if keep else None
    name = digest("object", versions(), compiler(), host(), text) if kept is not None else ""
    found = None if kept is None else kept.get(name)
    if found is not None:
        return found
    created = _plain_target_machine(host())
    module = llvm.parse_assembly(text)
    module.triple = host().triple
    module.data_layout = str(created.target_data)
    code: bytes = created.emit_object(module)
    if kept is not None:
        kept.put(name, code)
    return code


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
