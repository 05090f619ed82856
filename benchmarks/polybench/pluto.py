"""Pluto (https://github.com/bondhugula/pluto) as a source-to-source step: its `polycc` over each region's C text in written order, sizes symbolic as PolyBench has them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from polyml.codegen.c.host import program_text
from polyml.codegen.generate import generate
from polyml.codegen.passes.simplify import simplify
from polyml.errors import CodegenError
from polyml.lowered import Lowered

__all__ = ["pluto_text"]

REGION = re.compile(r"^static void \w+\([^\n]*\)\n\{\n(.*?)^\}\n", re.MULTILINE | re.DOTALL)
HELPERS = re.compile(r"^#define (?:ceild|floord|max|min)\(.*\n", re.MULTILINE)


def pluto_text(lowered: Lowered, polycc: str, flags: Sequence[str]) -> str:
    """The program's C text after Pluto. A region without loops, or one that Pluto refuses (a data-dependent value, say), stays as it is.

    Raises:
        CodegenError: Pluto takes none of the regions.
    """
    stages = lowered.stages
    functions = [simplify(generate(region.schedule, name=region.region.name)) for region in stages.regions]
    text = program_text(stages.graph.name, stages.plan, functions, stages.graph.sizes)
    head = text[: text.index("static void ")]
    regions = [match for match in REGION.finditer(text) if "    for (" in match[1]]
    made = {match[0]: _transformed(head, match, polycc, flags) for match in regions}
    if not any(made.values()):
        raise CodegenError("Pluto takes none of the program's regions")
    helpers = ""
    for before, after in made.items():
        if after is not None:
            helpers = helpers or "".join(HELPERS.findall(after))
            text = text.replace(before, after[after.index("static void ") :], 1)
    return text.replace(head, head + helpers, 1)


def _transformed(head: str, region: re.Match[str], polycc: str, flags: Sequence[str]) -> str | None:
    """The region's file as Pluto writes it; None when it refuses.

    Pluto sees the loops as C89 wrote them, with plain integers, and numbers in place of pointers to them.
    """
    signature, _, body = region[0].partition("\n{\n")
    first, last = body.index("    for ("), body.rindex("\n    }\n") + len("\n    }\n")
    scalars = re.findall(r"const double \*restrict (\w+)", signature)
    loops = body[first:last]
    for name in scalars:
        loops = re.sub(rf"\*{name}\b", f"{name}_0", loops)
    copies = "".join(f"    double {name}_0 = *{name};\n" for name in scalars)
    copies += "".join(f"    int {name};\n" for name in sorted(set(re.findall(r"for \(int64_t (\w+) = ", loops))))
    loops = loops.replace("for (int64_t ", "for (")
    text = f"{signature}\n{{\n{body[:first]}{copies}#pragma scop\n{loops}#pragma endscop\n{body[last:]}"
    with tempfile.TemporaryDirectory(prefix="polyml-") as folder:
        Path(folder, "region.c").write_text(head + text.replace("int64_t", "int"))
        command = [polycc, "region.c", *flags, "-o", "tiled.c"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        made = Path(folder, "tiled.c")
        return made.read_text() if done.returncode == 0 and made.exists() else None
