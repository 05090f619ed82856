"""The disk cache: a folder of files that are private to their owner, named by a digest, checked when they are read, and bounded in all.

    ~/.cache/polyml (or under XDG_CACHE_HOME)     POLYML_CACHE: another folder, or 0 for none     POLYML_CACHE_BYTES: the bound

A file is written under a temporary name and renamed, so a reader sees a whole file or none, whoever is killed when. Nothing here fails a compilation: a folder that cannot
be used, a full disk or a damaged file means compiling again, with one warning per process where the owner should know.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from polyml.errors import PolymlError

__all__ = ["DEFAULT_BYTES", "Store", "folder_in_force", "store"]

DEFAULT_BYTES = 256 * 1024 * 1024
_MAGIC = b"polyml\r\n\x00\x01"
_SUFFIX = ".kernel"
_KERNEL = re.compile(rf"[0-9a-f]{{64}}\{_SUFFIX}")
_TEMPORARY = re.compile(r"\.[0-9a-f]{64}\.[0-9]+\.[0-9a-f]{8}")
"""Names of files that are written here: the user's folder may hold others, which are nobody's to delete."""
_HOUR = 3600.0
_DIGEST = hashlib.sha256().digest_size


class Store:
    """One folder. `get` and `put` may be called by many threads and processes at once.

    limit: bytes in all; the files that were not used for longest go first. asked: the user named the folder, and is told when it cannot be written.
    """

    def __init__(self, folder: Path, limit: int, *, asked: bool) -> None:
        self.folder, self.limit, self.asked = folder, limit, asked
        self._written: int | None = None  # bytes since the folder was last measured
        self._told: set[str] = set()

    def get(self, name: str) -> bytes | None:
        """What was put under `name` (64 hex digits), or None when there is nothing or nothing trustworthy."""
        with contextlib.suppress(FileNotFoundError):
            try:
                with self._opened(create=False) as folder:
                    return None if folder is None else self._read(folder, name)
            except FileNotFoundError:
                raise
            except OSError as error:
                self._tell("read", f"cannot read {self.folder}: {error.strerror}", even_unasked=False)
        return None

    def put(self, name: str, content: bytes) -> None:
        """Keeps `content` under `name`; where that is not possible, it does not."""
        body = name.encode() + content
        data = _MAGIC + hashlib.sha256(body).digest() + body
        if len(data) > self.limit:
            return
        try:
            with self._opened(create=True) as folder:
                if folder is not None:
                    _write(folder, name, data)
                    self._bound(folder, len(data))
        except OSError as error:
            self._tell("write", f"cannot write to {self.folder}: {error.strerror}", even_unasked=False)

    def damaged(self, name: str) -> None:
        """Drops a file whose content cannot be used, so that it is made again, and says so."""
        with contextlib.suppress(OSError), self._opened(create=False) as folder:
            if folder is not None:
                os.unlink(name + _SUFFIX, dir_fd=folder)
        self._tell("damaged", f"{self.folder / (name + _SUFFIX)} is damaged; it is compiled again", even_unasked=True)

    def trouble(self) -> str | None:
        """Why nothing can be kept here, or None."""
        try:
            with self._opened(create=True) as folder:
                writable = folder is not None and os.access(self.folder, os.R_OK | os.W_OK | os.X_OK)
        except OSError as error:
            return f"{self.folder} cannot be used: {error.strerror}"
        return None if writable else f"{self.folder} is not used: it must belong to you, and only you may write it"

    def size(self) -> int:
        """Bytes of all that is kept."""
        return sum(f.stat().st_size for f in self.folder.glob("*" + _SUFFIX))

    @contextlib.contextmanager
    def _opened(self, *, create: bool) -> Iterator[int | None]:
        """The folder, as a descriptor: what was checked is what is used, even when somebody renames things meanwhile. None: it may not be used."""
        if create:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _private(os.fstat(descriptor)):
                yield descriptor
            else:
                advice = "it must belong to you, and only you may write it"
                self._tell("private", f"{self.folder} is not used: {advice}", even_unasked=True)
                yield None
        finally:
            os.close(descriptor)

    def _read(self, folder: int, name: str) -> bytes | None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name + _SUFFIX, flags, dir_fd=folder), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not (stat.S_ISREG(status.st_mode) and _private(status)):
                self._tell("file", f"a file in {self.folder} is not used: others may write it", even_unasked=True)
                return None
            if status.st_size > max(self.limit, DEFAULT_BYTES):  # not written here, and maybe more than memory holds
                self.damaged(name)
                return None
            data = file.readall()
            if time.time() - status.st_mtime > _HOUR:
                with contextlib.suppress(OSError):  # it was used: a reason to keep it
                    os.utime(file.fileno())
        start = len(_MAGIC) + _DIGEST
        body = data[start:]
        if data[:start] == _MAGIC + hashlib.sha256(body).digest() and body.startswith(name.encode()):
            return body[len(name) :]
        self.damaged(name)
        return None

    def _bound(self, folder: int, added: int) -> None:
        """Keeps the folder below the limit: it is measured at the first file, and again whenever this process has added a sixteenth of the limit."""
        if self._written is not None and self._written + added < self.limit // 16:
            self._written += added
            return
        self._written = 0
        found: list[tuple[float, int, str]] = []
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):  # another process was faster
                status = entry.stat(follow_symlinks=False)
                if _KERNEL.fullmatch(entry.name):
                    found.append((status.st_mtime, status.st_size, entry.name))
                elif _TEMPORARY.fullmatch(entry.name) and time.time() - status.st_mtime > _HOUR:
                    os.unlink(entry.name, dir_fd=folder)  # left by a process that was killed
        total = sum(size for _, size, _ in found)
        if total <= self.limit:
            self._written = max(0, total - self.limit * 15 // 16)
            return
        for _, size, name in sorted(found):
            if total <= self.limit * 3 // 4:
                break
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
                total -= size

    def _tell(self, cause: str, text: str, *, even_unasked: bool) -> None:
        if cause not in self._told:
            self._told.add(cause)
            if even_unasked or self.asked:
                warnings.warn(f"polyml's cache: {text}", RuntimeWarning, stacklevel=_level_of_caller())


def _level_of_caller() -> int:
    """The `stacklevel` at which a warning of the function that asks points into the code that called polyml."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    own = [level for level, frame in enumerate(frames) if frame.f_globals.get("__name__", "").startswith("polyml.")]
    return own[-1] + 2


def _private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _write(folder: int, name: str, data: bytes) -> None:
    """A new file under a name of its own, then renamed."""
    temporary = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.rename(temporary, name + _SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def store() -> Store | None:
    """The store in force here (POLYML_CACHE, POLYML_CACHE_BYTES), or None where there is none.

    Raises:
        PolymlError: POLYML_CACHE_BYTES is no number.
    """
    folder = folder_in_force()
    if folder is None or os.open not in os.supports_dir_fd:
        return None
    text = os.environ.get("POLYML_CACHE_BYTES", "") or str(DEFAULT_BYTES)
    if not text.isdecimal():
        raise PolymlError(f"POLYML_CACHE_BYTES = {text!r} is not a number of bytes", hint="for example 1000000000")
    return _store(folder, int(text), os.environ.get("POLYML_CACHE", "") not in ("", "1"))


def folder_in_force() -> Path | None:
    """Where kernels are kept, or None: the cache is off, or there is no home."""
    asked = os.environ.get("POLYML_CACHE", "")
    if asked == "0":
        return None
    if asked not in ("", "1"):  # 1 switches the cache on, as 0 switches it off
        return Path(os.path.expanduser(asked)).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "polyml"
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return None
    return Path(home) / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "polyml"


@functools.cache
def _store(folder: Path, limit: int, asked: bool) -> Store:
    return Store(folder, limit, asked=asked)
