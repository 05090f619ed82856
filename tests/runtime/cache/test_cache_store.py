"""The store under the disk cache: one folder, whole and private files, bounded, whatever happens to it."""

import errno
import os
import time
import warnings
from pathlib import Path

import pytest

from polyml.errors import PolymlError
from polyml.runtime.cache.files import Store, folder_in_force, store

NAME = "ab" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def new_store(folder: Path, limit: int = 1 << 20) -> Store:
    return Store(folder, limit, asked=True)


def kernels(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kernel"))


def test_round_trip_and_privacy(folder: Path) -> None:
    kept = new_store(folder)
    assert kept.get(NAME) is None
    kept.put(NAME, b"content")
    assert kept.get(NAME) == b"content"
    kept.put(NAME, b"")
    assert kept.get(NAME) == b""
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [f.stat().st_mode & 0o777 for f in folder.iterdir()] == [0o600]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    new_store(folder).put(NAME, b"evil")
    folder.chmod(mode)
    kept = new_store(folder)
    with pytest.warns(RuntimeWarning, match="only you may write"):
        assert kept.get(NAME) is None
    kept.put("cd" * 32, b"more")
    assert len(kernels(folder)) == 1
    folder.chmod(0o755)
    assert kept.get(NAME) == b"evil"


def test_a_file_that_others_may_write_is_refused(folder: Path) -> None:
    kept = new_store(folder)
    kept.put(NAME, b"evil")
    (file,) = kernels(folder)
    file.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="others may write it"):
        assert kept.get(NAME) is None


def test_foreign_folders_and_links_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = new_store(folder)
    kept.put(NAME, b"content")
    (file,) = kernels(folder)
    other = folder / f"{'cd' * 32}.kernel"
    other.symlink_to(file)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert kept.get("cd" * 32) is None
    assert len(said) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.warns(RuntimeWarning, match="must belong to you"):
        assert kept.get(NAME) is None


def test_a_folder_that_is_a_file(folder: Path) -> None:
    folder.write_text("")
    kept = new_store(folder)
    with pytest.warns(RuntimeWarning, match="cannot write"):
        kept.put(NAME, b"content")
    with pytest.warns(RuntimeWarning, match="cannot read"):
        assert kept.get(NAME) is None
    kept.put(NAME, b"content")  # once only


@pytest.mark.parametrize("code", ["ENOSPC", "EROFS", "EDQUOT", "EIO", "EACCES"])
@pytest.mark.parametrize("function", ["open", "rename"])
def test_a_full_or_read_only_disk(folder: Path, code: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(os, function)

    def fail(*args: object, **keywords: object) -> object:
        if function == "rename" or (len(args) > 1 and isinstance(args[1], int) and args[1] & os.O_CREAT):
            raise OSError(getattr(errno, code), "no")
        return real(*args, **keywords)

    kept = new_store(folder)
    monkeypatch.setattr(os, function, fail)
    with pytest.warns(RuntimeWarning, match="cannot write"):
        kept.put(NAME, b"content")
    kept.put(NAME, b"content")
    monkeypatch.undo()
    assert kept.get(NAME) is None
    assert list(folder.iterdir()) == []


def test_a_folder_nobody_asked_for_fails_silently(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    Store(tmp_path / "home" / "polyml", 1 << 20, asked=False).put(NAME, b"content")


def test_damage_anywhere_is_found(folder: Path) -> None:
    kept = new_store(folder)
    content = bytes(range(256))
    kept.put(NAME, content)
    (file,) = kernels(folder)
    whole = file.read_bytes()
    damaged = [whole[:k] for k in range(0, len(whole), 7)] + [whole + b"x", b"", whole[1:]]
    for k in range(0, len(whole), 3):
        damaged.append(whole[:k] + bytes([whole[k] ^ 0x10]) + whole[k + 1 :])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for data in damaged:
            file.write_bytes(data)
            file.chmod(0o600)
            assert kept.get(NAME) is None
            assert not file.exists()
    assert [str(w.message).endswith("is damaged; it is compiled again") for w in said] == [True]
    file.write_bytes(whole)
    (folder / f"{'cd' * 32}.kernel").write_bytes(whole)
    assert kept.get("cd" * 32) is None, "a renamed file"
    assert kept.get(NAME) == content


def test_a_file_that_is_longer_than_memory_is_damaged(folder: Path) -> None:
    kept = new_store(folder)
    kept.put(NAME, b"content")
    (file,) = kernels(folder)
    os.truncate(file, 1 << 43)  # of which nothing is on the disk but the beginning
    with pytest.warns(RuntimeWarning, match="is damaged; it is compiled again"):
        assert kept.get(NAME) is None
    kept.put(NAME, b"content")
    assert kept.get(NAME) == b"content"


def test_the_bound_drops_what_was_used_longest_ago(folder: Path) -> None:
    kept = new_store(folder, limit=20_000)
    now = time.time()
    for k in range(40):
        name = f"{k:064x}"
        kept.put(name, bytes(1000))
        os.utime(folder / f"{name}.kernel", (now - 100_000 + k, now - 100_000 + k))
        if k % 5 == 0:
            assert kept.get(f"{0:064x}") is not None, "used again and again"
    total = sum(f.stat().st_size for f in kernels(folder))
    assert 10_000 <= total <= 20_000 * 17 // 16
    names = [int(f.stem, 16) for f in kernels(folder)]
    assert names[0] == 0
    assert names[-1] == 39
    assert names[1:] == list(range(names[1], 40))
    kept.put("ff" * 32, bytes(30_000))
    assert kept.get("ff" * 32) is None, "larger than the whole bound"


def test_left_over_temporary_files_go_and_no_others(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    old, young = folder / f".{NAME}.7.{'0' * 8}", folder / f".{NAME}.8.{'0' * 8}"
    foreign = [folder / ".profile", folder / "my.kernel"]
    for file in (old, young, *foreign):
        file.write_bytes(bytes(2000))
        os.utime(file, None if file is young else (0, 0))
    kept = new_store(folder, limit=2000)
    kept.put(NAME, bytes(1000))
    kept.put("cd" * 32, bytes(1000))
    assert not old.exists()
    assert all(file.exists() for file in (young, *foreign))
    assert kept.get(NAME) is None, "beyond the bound"


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYML_CACHE", "0")
    assert folder_in_force() is store() is None
    monkeypatch.delenv("POLYML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder_in_force() == tmp_path / "polyml"
    monkeypatch.setenv("POLYML_CACHE", "1")
    assert folder_in_force() == tmp_path / "polyml"
    monkeypatch.delenv("POLYML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = folder_in_force()
    assert found is not None
    assert found.is_relative_to(tmp_path)
    monkeypatch.setenv("POLYML_CACHE", "~/kernels")  # which no shell has seen: from a file of settings, or from Python
    assert folder_in_force() == tmp_path / "kernels"
    monkeypatch.setenv("POLYML_CACHE_BYTES", "many")
    with pytest.raises(PolymlError, match="POLYML_CACHE_BYTES"):
        store()
