"""The Python blocks of README.md and docs/ run as printed."""

from __future__ import annotations

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


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page: str, tmp_path: Path) -> None:
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
