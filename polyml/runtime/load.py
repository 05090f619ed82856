"""Machine code in this process: LLVM IR text in, addresses out, and a Python function object from an entry point's address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm

from polyml.target import Target

__all__ = ["Code", "builtin_function", "compile_module", "define_symbol"]

METH_FASTCALL, METH_KEYWORDS = 0x0080, 0x0002


@dataclass(frozen=True, slots=True)
class Code:
    """Loaded code: it is unloaded with its last owner, so whoever may run it holds this object."""

    engine: llvm.ExecutionEngine

    def address(self, name: str) -> int:
        """Of a function or a global."""
        found = self.engine.get_function_address(name) or self.engine.get_global_value_address(name)
        assert found, f"internal: no symbol {name} in the loaded code"
        return int(found)

    def set_pointer(self, name: str, value: int) -> None:
        """Stores an address in the global `name`, which holds a pointer."""
        ctypes.c_size_t.from_address(self.address(name)).value = value


def define_symbol(name: str, address: int) -> None:
    """Code loaded from now on finds `name` at `address`."""
    llvm.add_symbol(name, address)


def compile_module(texts: Sequence[str], target: Target | None = None, *, speed_level: int = 1) -> Code:
    """The code of LLVM modules that are linked into one."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    modules = [llvm.parse_assembly(text) for text in texts]
    whole = modules[0]
    for other in modules[1:]:
        whole.link_in(other)
    whole.verify()
    host = target or Target.host()
    machine = llvm.Target.from_triple(host.triple).create_target_machine(
        cpu=host.cpu, features=host.features, opt=speed_level
    )
    tuning = llvm.create_pipeline_tuning_options(speed_level=speed_level)
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(whole, builder)
    engine = llvm.create_mcjit_compiler(whole, machine)
    engine.finalize_object()
    return Code(engine)


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("ml_name", ctypes.c_char_p),
        ("ml_meth", ctypes.c_void_p),
        ("ml_flags", ctypes.c_int),
        ("ml_doc", ctypes.c_char_p),
    )


def builtin_function(name: str, address: int, owner: object, doc: str = "") -> Callable[..., object]:
    """The built-in function object of an entry point `ptr (ptr self, ptr args, i64 nargs, ptr kwnames)`.

    Args:
        owner: kept alive by the function, and with it whatever the code needs.
    """
    definition = _MethodDef(name.encode(), address, METH_FASTCALL | METH_KEYWORDS, doc.encode() or None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p]
    function: Callable[..., object] = make(ctypes.byref(definition), (definition, owner), None)
    return function
