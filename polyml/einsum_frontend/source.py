"""Where programs come from: a decorated Python function (form 1), or text (form 2). Both end in a resolved Program.

Of a decorated function only the source is used; nothing of it runs. `inspect` can return stale or wrong text (an edited file, `exec`, a line cache), so the text is
compiled again and compared with the function that Python made: bytecode, constants, names, positions in the source, and the annotations.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import itertools
import tokenize
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType

from polyml.dtypes import DType
from polyml.einsum_frontend.parse import parse
from polyml.einsum_frontend.positions import split_lines
from polyml.einsum_frontend.python_parser import python_tree, without_warnings
from polyml.einsum_frontend.resolve import resolve
from polyml.einsum_frontend.syntax import Program
from polyml.errors import EinsumSyntaxError
from polyml.source import Source

__all__ = ["program_from_function", "program_from_text"]

_FORM_2 = 'give the program as text instead: f = polyml.einsum("""def f(x: f32["N"]): ...""")'
_ABOVE_DEF = "put @polyml.einsum directly above `def`, below other decorators"
_AROUND = "__around__"
_INHERITED_FLAGS = 0
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
for _feature in __future__.all_feature_names:
    _INHERITED_FLAGS |= getattr(__future__, _feature).compiler_flag


def program_from_text(text: str, namespace: Mapping[str, object], *, filename: str = "<einsum>") -> Program:
    """The resolved program in `text`. `namespace`: the caller's names, of which numbers and einsum programs are read.

    Raises:
        EinsumSyntaxError, NotAffineError: as `parse` and `resolve`.
    """
    return resolve(parse(Source(text, filename)), namespace)


def program_from_function(function: Callable[..., object]) -> Program:
    """The resolved program that `function`'s source spells; numbers and einsum programs come from its closure and globals.

    Raises:
        EinsumSyntaxError: the source cannot be had, or is not that of `function` (the hint points to form 2), or is no program.
    """
    if not isinstance(function, FunctionType):
        raise _no_function(function)
    if function.__name__ == "<lambda>":
        raise EinsumSyntaxError("polyml.einsum decorates a function, not a lambda", hint="write it with `def`")
    if hasattr(function, "__wrapped__"):  # its source would be that of what is inside
        message = f"another decorator has put a function of its own in the place of {function.__name__!r}"
        raise EinsumSyntaxError(message, hint=_ABOVE_DEF)
    source = _source_of(function)
    definition = _definition_like(function, source)
    program = parse(source)  # before the annotations are compared: an error in one of them is told better from here
    _compare_annotations(function, definition)
    return resolve(program, _names_around(function))


def _no_function(value: object) -> EinsumSyntaxError:
    """What is wrong with decorating something that `def` has not made."""
    if isinstance(value, type):
        return EinsumSyntaxError(
            f"polyml.einsum decorates a function, and {value.__name__!r} is a class",
            hint="a program is one function, outside of classes; a method calls it",
        )
    if hasattr(value, "program"):
        return EinsumSyntaxError(f"{value.program.name!r} is an einsum program already", hint="decorate it once")
    name = type(value).__name__
    return EinsumSyntaxError(
        f"polyml.einsum decorates a function that `def` makes, and this is one of type {name}", hint=_ABOVE_DEF
    )


def _source_of(function: FunctionType) -> Source:
    name = function.__name__
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError) as error:
        message = f"the source of {name!r} cannot be read ({error})"
        raise EinsumSyntaxError(message, hint=_FORM_2) from None
    return Source("".join(lines), inspect.getsourcefile(function) or function.__code__.co_filename, max(first_line, 1))


def _names_around(function: FunctionType) -> Mapping[str, object]:
    cells: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # assigned only after the decoration
            continue
    return ChainMap(cells, function.__globals__)


def _definition_like(function: FunctionType, source: Source) -> _Definition:
    """The definition in `source`; refuses when it gives another function than `function` is."""
    code = function.__code__
    modules = [name for name in code.co_names if isinstance(function.__globals__.get(name), ModuleType)]
    for imported in ([], modules):
        compiled, definition = _compile_again(function, source, imported)
        if compiled is not None and definition is not None and _same_code(code, compiled, code.co_firstlineno):
            return definition
    raise _mismatch(function)


def _compare_annotations(function: FunctionType, definition: _Definition) -> None:
    """Refuses when the annotations of `definition`, which no bytecode shows, are not those of `function`."""
    arguments = [*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs]
    for argument in arguments:
        value = function.__annotations__.get(argument.arg)
        if argument.annotation is not None and not _same_annotation(argument.annotation, value):
            raise _mismatch(function)


def _mismatch(function: FunctionType) -> EinsumSyntaxError:
    message = f"the source found for {function.__name__!r} is not what Python compiled (an edited file, or exec?)"
    return EinsumSyntaxError(message, hint=f"load the file again, or {_FORM_2}")


def _compile_again(
    function: FunctionType, source: Source, imported: Sequence[str]
) -> tuple[CodeType | None, _Definition | None]:
    """The code object and definition that `source` gives, in surroundings with the same free variables and future statements.

    Args:
        imported: names that an import of the module binds, calls of whose attributes (`np.exp(..)`) Python compiles otherwise than those of others.
    """
    code = function.__code__
    lines = split_lines(source.text)
    first = next((line for line in lines if line.strip()), "")
    if first[:1] in {" ", "\t"}:  # the outer function's parameters become the free variables
        lines = [f"def {_AROUND}({', '.join(code.co_freevars)}):", *lines]
    if imported:
        lines = [f"import {', '.join(imported)}", *lines]
    flags = code.co_flags & _INHERITED_FLAGS
    try:
        with without_warnings():
            tree = python_tree("\n".join(lines))
            module = compile(tree, source.filename, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None, None
    definition = next((n for n in ast.walk(tree) if isinstance(n, _Definition) and n.name != _AROUND), None)
    pending = [module]
    while pending:
        found = pending.pop()
        if found.co_name == function.__name__:
            return found, definition
        pending += [constant for constant in found.co_consts if isinstance(constant, CodeType)]
    return None, definition


def _same_code(one: CodeType, other: CodeType, first_line: int) -> bool:
    """Whether two code objects do the same and stand alike in their files, up to a shift of lines."""
    shift = first_line - other.co_firstlineno
    same = (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and one.co_freevars == other.co_freevars
        and one.co_argcount == other.co_argcount
        and len(one.co_consts) == len(other.co_consts)
    )
    if not same:
        return False
    for (line, end, *columns), (line2, end2, *columns2) in itertools.zip_longest(
        one.co_positions(), other.co_positions(), fillvalue=(None, None, None, None)
    ):
        if line is not None and line2 is not None and (line != line2 + shift):
            return False
        if None not in (end, end2, *columns, *columns2) and columns != columns2:
            return False
    return all(
        a == b and type(a) is type(b)
        if not isinstance(a, CodeType)
        else isinstance(b, CodeType) and _same_code(a, b, a.co_firstlineno)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


def _same_annotation(node: ast.expr, value: object) -> bool:
    """Whether the annotation `node` can have given `value`; only values that polyml knows are judged."""
    if isinstance(value, DType):
        return ast.unparse(node).rpartition(".")[2] == value.name
    if isinstance(value, str):  # a shape, or any annotation under `from __future__ import annotations`
        text = ast.unparse(node)
        return value in (text, text[text.rfind(".", 0, text.find("[")) + 1 :])
    return True
