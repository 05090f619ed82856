"""Fingerprints: a digest of everything that decides about a kernel's code, so that equal digests mean equal code.

They cover a program's meaning (not where its text stands), the key of the dispatcher, options, target, and the versions of what compiles.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from polyml.source import Source, Span

__all__ = ["digest", "versions"]

_FORMAT = 1
"""Of the files that hold kernels: another number, and older ones are not read."""


def digest(*values: object) -> str:
    """64 hex digits for nested dataclasses, tuples, mappings, strings, numbers and None; positions in source text do not count."""
    text = "\n".join(piece for value in values for piece in _pieces(value))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _pieces(value: object) -> Iterator[str]:
    """The value as unambiguous words: strings quoted, brackets around what is nested."""
    match value:
        case None | bool() | str() | bytes():
            yield repr(value)
        case int():
            yield int.__repr__(value)
        case float():
            yield float.__repr__(value)
        case Span() | Source():
            yield "_"
        case tuple():
            yield "("
            for item in value:
                yield from _pieces(item)
            yield ")"
        case Mapping():
            yield "{"
            for key in sorted(value):
                yield from _pieces(key)
                yield from _pieces(value[key])
            yield "}"
        case _:
            assert is_dataclass(value), f"internal: {type(value).__name__} in a fingerprint"
            assert not isinstance(value, type), "internal: a class in a fingerprint"
            yield f"{type(value).__name__}("
            for field in fields(value):
                if field.compare:
                    yield from _pieces(getattr(value, field.name))
            yield ")"


@functools.cache
def versions() -> tuple[str, ...]:
    """Python's and polyml's; polyml's is that of its files, so that an edited checkout never runs what it compiled before. LLVM's is `machine.compiler()`'s, for what LLVM
    has compiled."""
    import polyml

    python = f"{sys.implementation.cache_tag} {sys.platform}"
    return str(_FORMAT), python, polyml.__version__, _files(Path(polyml.__file__).parent)


def _files(package: Path) -> str:
    """Paths, sizes and times of change of the package's modules, as a digest."""
    found: list[str] = []
    folders = [str(package)]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        folders.append(entry.path)
                    elif entry.name.endswith(".py"):
                        status = entry.stat()
                        found.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
        except OSError:  # not a folder of files: the version alone has to do
            continue
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()
