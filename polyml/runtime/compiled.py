"""Compiled: a kernel's code before it is loaded, and its form on disk.

On disk: the length of a JSON header, the header (the signature and the lengths of what follows), the object files, and the texts behind them, compressed,
which are only unpacked when somebody looks.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass

from polyml.codegen.llvm.machine import Machine
from polyml.dtypes import DType
from polyml.records import dataclass
from polyml.runtime.signature import ArrayParameter, KernelSignature, Result, ScalarParameter, SizeParameter
from polyml.sets.affine import Affine, Extremum, FloorDiv
from polyml.sets.weighed import Weighed

__all__ = ["Compiled"]

_STORED = (
    Affine, ArrayParameter, DType, Extremum, FloorDiv, KernelSignature, Machine, Result, ScalarParameter, SizeParameter, Weighed,
)  # fmt: skip
_CLASSES: dict[str, Callable[..., object]] = {kind.__name__: kind for kind in _STORED}
_NAMES = {kind.__name__: tuple(field.name for field in fields(kind) if field.init) for kind in _STORED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """signature: what the kernel takes. machine: what its regions were compiled for. objects: object files that are linked together.

    host, entry: the names of the host function and of the entry point in them (entry is empty where there is none). texts: the Plan, the regions' LLVM IR
    before optimization, and that of the host function and the entry point, as UTF-8 that zlib has compressed.
    """

    signature: KernelSignature
    machine: Machine
    objects: tuple[bytes, ...]
    host: str
    entry: str
    texts: tuple[bytes, ...]

    def text(self, number: int) -> str:
        """One of the texts: 0 the Plan, 1 the regions, 2 host function and entry point."""
        return zlib.decompress(self.texts[number]).decode()

    def to_bytes(self) -> bytes:
        """The form on disk."""
        parts = (*self.objects, *self.texts)
        header = {
            "signature": _plain(self.signature),
            "machine": _plain(self.machine),
            "names": [self.host, self.entry],
            "objects": len(self.objects),
            "lengths": [len(part) for part in parts],
        }
        head = json.dumps(header, separators=(",", ":")).encode()
        return b"".join((len(head).to_bytes(8, "little"), head, *parts))

    @staticmethod
    def from_bytes(data: bytes) -> Compiled:
        """What `to_bytes` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            end = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:end])
            parts: list[bytes] = []
            for length in header["lengths"]:
                parts.append(data[end : end + length])
                end += length
            host, entry = header["names"]
            count, signature, machine = header["objects"], _object(header["signature"]), _object(header["machine"])
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"not a compiled kernel: {error}") from None
        if end != len(data) or not isinstance(signature, KernelSignature) or not isinstance(machine, Machine):
            raise ValueError("not a compiled kernel")
        return Compiled(
            signature=signature,
            machine=machine,
            objects=tuple(parts[:count]),
            host=host,
            entry=entry,
            texts=tuple(parts[count:]),
        )


def _plain(value: object) -> object:
    """Dataclasses as [name, fields...], tuples as ["", items...]; numbers, strings and None as they are."""
    if isinstance(value, tuple):
        return ["", *map(_plain, value)]
    if is_dataclass(value):
        assert type(value) in _STORED, f"internal: {type(value).__name__} in a signature"
        return [type(value).__name__, *(_plain(getattr(value, name)) for name in _NAMES[type(value).__name__])]
    assert value is None or isinstance(value, str | int), f"internal: {type(value).__name__} in a signature"
    return value


def _object(value: object) -> object:
    if not isinstance(value, list):
        return value
    name, *items = value
    made = tuple(map(_object, items))
    if name == "":
        return made
    return _CLASSES[name](**dict(zip(_NAMES[name], made, strict=True)))
