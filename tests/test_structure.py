"""The package's structure is what docs/architecture.md says: imports run one way along the pipeline, every folder has its line, and files that texts mention exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

from polyml.lowered import View

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "polyml"
PIPELINE = ("sets", "einsum_frontend", "graph", "scop", "schedule", "codegen", "runtime", "compiler", "einsum_numpy")
INVENTED = {"edited.py", "neighbour.py", "nowhere.py", "shifted.py", "siteconf.py", "model.py"}
"""Names of files in texts that no repository has."""


def imports(file: Path) -> set[str]:
    """The stages that a module imports from, wherever the import stands."""
    return set(re.findall(r"^\s*from polyml\.(\w+)", file.read_text(), re.M))


def test_imports_run_one_way() -> None:
    later = [
        (str(file.relative_to(ROOT)), imported)
        for position, stage in enumerate(PIPELINE)
        for file in (PACKAGE / stage).rglob("*.py")
        for imported in imports(file).intersection(PIPELINE[position + 1 :])
    ]
    assert not later


def test_what_every_stage_shares_imports_no_stage_but_sets() -> None:
    shared = (
        "source",
        "errors",
        "dtypes",
        "ops",
        "expressions",
        "linear",
        "masked_terms",
        "operation_weights",
        "shown",
        "records",
        "new_names",
        "renewed",
        "nesting",
        "collection",
        "interrupts",
        "disjoint_sets",
        "target",
        "options",
    )
    for name in shared:
        assert not imports(PACKAGE / f"{name}.py").intersection(PIPELINE[1:]), name


def test_every_folder_has_its_line() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[: page.index("## The stops")]
    for folder in (path.parent for path in PACKAGE.rglob("__init__.py")):
        if folder != PACKAGE and folder.name != "math":
            assert f"{folder.name}/`" in table, folder


def test_files_that_texts_mention_exist() -> None:
    known = [f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.py")]
    texts = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *PACKAGE.rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
    ]
    for text in texts:
        for name in re.findall(r"(?<![\w./])((?:\w+/)*\w+\.py)\b", text.read_text()):
            assert name in INVENTED or any(path.endswith(f"/{name}") for path in known), (text.name, name)


def test_every_view_has_its_line() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("| `lowered.show(..)` |") : page.index("`lowered.explain()` says")]
    assert re.findall(r'`"(\w+)"`', table) == list(get_args(View))


def test_every_rule_has_its_line() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    tables = page[page.index("| `rules/windows/`") : page.index("| `algebra/` |")]
    table = ast.parse((PACKAGE / "graph" / "rules" / "table.py").read_text())
    names = (node.module for node in table.body if isinstance(node, ast.ImportFrom) and node.module is not None)
    rules = [name.split(".")[-2:] for name in names if name.startswith("polyml.graph.rules.")]
    assert len(rules) > 50
    assert not [rule for folder, rule in rules if folder != "algebra" and f"{rule}.py`" not in tables]


def test_folders_of_tests_are_those_of_the_package() -> None:
    for stage in ("graph", "scop", "schedule", "codegen"):
        for init in (ROOT / "tests" / stage).rglob("__init__.py"):
            assert (PACKAGE / init.relative_to(ROOT / "tests")).exists(), init


def test_every_file_and_folder_says_what_it_is_about() -> None:
    silent = [
        str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*.py") if not re.match(r'"""\s*[^"\s]', file.read_text())
    ]
    assert not silent


def test_what_verify_finds_is_looked_at() -> None:
    """It raises nothing when results are wrong: its report is false."""
    for file in (ROOT / "tests").rglob("*.py"):
        text = file.read_text()
        imported = re.search(r"^from polyml\.testing(?:\.verify)? import verify(?: as (\w+))?$", text, re.M)
        if imported is None:
            continue
        tree, name = ast.parse(text), imported[1] or "verify"
        refused = {id(node) for block in ast.walk(tree) if isinstance(block, ast.With) for node in block.body}
        calls = (n.value for n in ast.walk(tree) if isinstance(n, ast.Expr) and id(n) not in refused)
        dropped = [n.lineno for n in calls if isinstance(n, ast.Call) and ast.unparse(n.func) == name]
        assert not dropped, file.name
