"""Target machines: IR text to optimized IR, assembly, object code, and code loaded into this process.

LLVM's vectorizers and unrollers stay off: the loops come vectorized and unrolled as they are meant to be.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import ModulePassManager, NewPassManager, create_new_module_pass_manager

from polyml.records import dataclass
from polyml.target import Target

__all__ = [
    "LLVM_LOCK",
    "Loaded",
    "Machine",
    "assembly",
    "compile_object",
    "compiler",
    "host",
    "load_object",
    "machine_of",
    "optimized",
]

LLVM_LOCK: AbstractContextManager[object] = getattr(llvm.ffi.lib, "_lock", nullcontext())
"""Held by llvmlite (if it still has it) in each call of LLVM, so also by a thread that unloads a kernel, whenever that dies."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What code is generated for. features: LLVM's feature string, "+avx2,-avx512f,..."; empty: those of the cpu."""

    name: str
    triple: str
    cpu: str
    features: str = ""


@cache
def host() -> Machine:
    """The processor that this runs on, with exactly its features."""
    return machine_of(Target.host())


def machine_of(target: Target) -> Machine:
    """What LLVM needs to know of a target."""
    return Machine(target.name, target.triple, target.cpu, target.features)


@cache
def compiler() -> str:
    """LLVM and its version: other ones make other code."""
    return f"llvm {'.'.join(map(str, llvm.llvm_version_info))} llvmlite {llvmlite.__version__}"


@cache
def _target_machine(machine: Machine) -> llvm.TargetMachine:
    if machine.triple == llvm.get_process_triple():
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    target = llvm.Target.from_triple(machine.triple)
    created = target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=2, reloc="pic", codemodel="default"
    )
    created.set_asm_verbosity(False)
    return created


@cache
def _pass_builder(machine: Machine) -> llvm.PassBuilder:
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    return llvm.create_pass_builder(_target_machine(machine), options)


def _few_passes() -> ModulePassManager:
    """A pipeline, which runs once only: functions that are to be inlined, registers for variables, arithmetic and blocks made simple.

    The emitter leaves no more to do (`unchanging.py`, `passes/registers/carried.py`). LLVM's own simplifications, at their first level, take five times as long for code of the same speed: they rotate
    loops, hoist from them, count them otherwise, and do the above several times over.
    """
    manager = create_new_module_pass_manager()
    manager.add_always_inliner_pass()
    manager.add_global_dead_code_eliminate_pass()
    manager.add_sroa_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    return manager


def _optimize(text: str, machine: Machine) -> llvm.ModuleRef:
    created = _target_machine(machine)
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(created.target_data)
    # LLVM keeps 1 KB of every builder.
    builder = _pass_builder(machine)
    few = _few_passes()
    few.run(module, builder)
    _free(few)
    return module


def _free(manager: ModulePassManager) -> None:
    """ObjectRef stands before NewPassManager among a manager's bases, so that llvmlite itself never frees it: 40 KB a time."""
    if type(manager)._dispose is not NewPassManager._dispose:
        NewPassManager._dispose(manager)
        manager.detach()


def optimized(text: str, machine: Machine) -> str:
    """The module's text after LLVM's optimizations."""
    return str(_optimize(text, machine))


def assembly(text: str, machine: Machine) -> str:
    """The module as assembly for the machine."""
    result: str = _target_machine(machine).emit_assembly(_optimize(text, machine))
    return result


def compile_object(text: str, machine: Machine) -> bytes:
    """The module as an object file for the machine."""
    result: bytes = _target_machine(machine).emit_object(_optimize(text, machine))
    return result


_LIBRARIES_PER_LINKER = 64
"""LLVM keeps some 9 KB of every library that was ever linked until its linker goes: so linkers change, and one goes with the last of its libraries."""

_LIBRARY_NUMBERS = itertools.count()


@lru_cache(maxsize=1)
def _linker(generation: int) -> llvm.LLJIT:
    # JITLink gives an object one piece of memory. LLVM's older linker takes one for each section, wherever there is room: in an address space that is full of holes
    # constants came to lie more than 2 GB from the code that reads them, which ends the process.
    return llvm.create_lljit_compiler(_target_machine(host()), use_jit_link=True)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Code in this process; it is unloaded when this object dies. addresses: of the exported symbols."""

    addresses: dict[str, int]
    tracker: llvm.ResourceTracker


def load_object(
    code: bytes | Sequence[bytes], exports: tuple[str, ...], imports: Mapping[str, int] | None = None
) -> Loaded:
    """Links one object file, or several together, into this process.

    Args:
        exports: the symbols to find. imports: addresses of symbols that it needs beside the process's own.

    Raises:
        RuntimeError: a symbol is missing.
    """
    library = llvm.JITLibraryBuilder().add_current_process()
    for part in (code,) if isinstance(code, bytes) else code:
        library.add_object_img(part)
    for name in exports:
        library.export_symbol(name)
    for name, address in (imports or {}).items():
        library.import_symbol(name, address)
    number = next(_LIBRARY_NUMBERS)
    tracker = library.link(_linker(number // _LIBRARIES_PER_LINKER), f"polyml{number}")
    return Loaded({name: tracker[name] for name in exports}, tracker)
