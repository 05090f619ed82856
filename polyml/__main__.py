"""The command line: `python -m polyml doctor | explain FILE:FUNCTION | demo | fuzz`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from polyml.errors import PolymlError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status is 0 when all went well, 1 when it did not, 2 for a fault on the command line."""
    chosen = _parser().parse_args(arguments)
    try:
        return _run(chosen)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PolymlError as fault:
        print(f"{type(fault).__name__}: {fault}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m polyml", description="A polyhedral loop optimizer for programs in Einstein notation."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    demo = commands.add_parser(
        "demo", help="a network learns to read digits; kernels side by side with NumPy; one program at every stage"
    )
    demo.add_argument("--target", default="host", choices=["host", "cuda"], help="where to run it (default: this CPU)")
    doctor = commands.add_parser(
        "doctor", help="what is found on this machine, and what to do where something is missing"
    )
    doctor.add_argument("--measure", action="store_true", help="also measure the FMA peak and the memory bandwidth")
    explain = commands.add_parser("explain", help="every stage of a program of your own")
    explain.add_argument(
        "program",
        metavar="FILE:FUNCTION",
        help="an einsum program, decorated or not, in a Python file (which is imported)",
    )
    explain.add_argument(
        "--shapes",
        nargs="*",
        default=[],
        metavar="SIZE=NUMBER",
        help="symbolic sizes and int parameters; the others get small numbers",
    )
    explain.add_argument(
        "--view",
        nargs="*",
        default=[],
        help="only these stages, in full: graph plan domains accesses dependences schedule loops llvm asm c (cuda)",
    )
    fuzz = commands.add_parser(
        "fuzz", help="random einsum calls against NumPy and random programs against the interpreter"
    )
    fuzz.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    fuzz.add_argument("--seed", type=int, default=0, help="of the first batch (default: 0)")
    return parser


def _run(chosen: argparse.Namespace) -> int:
    """The chosen command; each imports what it needs."""
    match chosen.command:
        case "demo":
            from polyml.demo.run import run

            os.environ["POLYML_CACHE"] = "0"  # it shows how long compiling takes
            return run(chosen.target)
        case "doctor":
            from polyml.doctor import examine, report_text

            findings = examine(measure=chosen.measure)
            print(report_text(findings), flush=True)
            return 0 if all(f.good or not f.needed for f in findings) else 1
        case "fuzz":
            os.environ["POLYML_CACHE"] = "0"  # nobody needs these kernels again
            try:
                from polyml.testing.fuzz import fuzz as search
            except ModuleNotFoundError as missing:
                hint = "pip install polyml-compiler[test]"
                raise PolymlError(f"{missing.name} is not installed", hint=hint) from None
            return search(chosen.seconds, chosen.seed)
        case _:
            from polyml.explain import explain_text

            print(explain_text(chosen.program, chosen.shapes, chosen.view), flush=True)
            return 0


if __name__ == "__main__":
    sys.exit(main())
