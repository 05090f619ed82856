"""The Python blocks of README.md and docs/ run as printed, and print what the pages say; commands that they name exist."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/language.md",
    "docs/einsum.md",
    "docs/scheduling.md",
    "docs/testing.md",
    "docs/numerics.md",
    "docs/gpu.md",
]


PRINTED = re.compile(r"\bprint\(.*\) +# (.*)")
"""A line that prints, and what it says about that; text in words is no quotation."""

QUOTED = {
    "docs/gpu.md": ("pycuda is not installed",),
    "docs/language.md": ("sum[k](exp(x[n, k]))", "exp(sum[k](x[n, k]))", "subscript 0 of x leaves its dimension of 50: it is 50 for s = 2", "dense has no parameter weights", "hint: its parameters: x, w, b"),
    "docs/scheduling.md": ("the schedule breaks a flow dependence", "run in the opposite order", "time tiles: t by 25, i by 16, j by 128", "blocks of 16 rows of A, each element loaded once for all sums; s: summed over 7 parts"),
}  # fmt: skip
"""What pages quote of their output beside the line that prints it."""


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # One file per page, blocks in place of their own lines: decorated functions need a source file, and errors point at the page's lines.
    text = (ROOT / page).read_text()
    lines = [""] * (text.count("\n") + 1)
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M))
    assert blocks
    for block in blocks:
        first = text.count("\n", 0, block.start(1))
        lines[first : first + block[1].count("\n")] = block[1].splitlines()
    script = tmp_path / (Path(page).stem + ".py")
    script.write_text("\n".join(lines))
    runpy.run_path(str(script))
    printed = capsys.readouterr().out
    for block in re.findall(r"^```text\n(.*?)^```", text, re.S | re.M):
        assert block in printed
    comments = " ".join(PRINTED.findall(text))
    for quoted in QUOTED.get(page, ()):
        assert quoted in comments
        assert quoted in printed or (page == "docs/gpu.md" and importlib.util.find_spec("pycuda") is not None)


def test_named_commands_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    commands = {
        name for page in pages for name in re.findall(r"python -m ((?:polyml|benchmarks)(?:\.\w+)*)", page.read_text())
    }
    assert len(commands) > 8
    assert not [name for name in commands if importlib.util.find_spec(name) is None]


def test_named_files_exist() -> None:
    """Under the name that a page gives: a path from the root or from a folder below it."""
    files = [
        f"/{path.relative_to(ROOT)}"
        for folder in ("polyml", "benchmarks", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named = {
        (page.name, name)
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text())
    }
    assert len(named) > 100
    assert not [(page, name) for page, name in named if not any(file.endswith(f"/{name}") for file in files)]


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([\w./]+\.\w+)\)", page.read_text())]
    assert len(links) > 10
    assert not [(page.name, link) for page, link in links if not (page.parent / link).exists()]
