"""The condition of an `if`, resolved against the statements below it.

It restricts each enclosed statement separately, and each must use every index that it names. Above `=` it names left indices and loop variables only. Above
`op=` it may also name indices that the right side sums; then every additive term must be summed over them, since what no summand reaches would be unsaid.
"""

from __future__ import annotations

from polyml.einsum_frontend.affine_form import require_condition
from polyml.einsum_frontend.names import CONSTANTS, looks_like_index
from polyml.einsum_frontend.scope import Scope
from polyml.einsum_frontend.syntax import Assign, Expression, IndexRef, Name
from polyml.einsum_frontend.walk import map_children
from polyml.errors import EinsumSyntaxError
from polyml.records import dataclass

__all__ = ["Facts", "resolve_condition"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What an `if` must know of an assignment below it.

    statement: as parsed. free: its indices that no reducer binds (resolved names). missing: those of them that the left side lacks.
    summed: those that an implied sum at the top of every additive term binds.
    """

    statement: Assign
    free: frozenset[str]
    missing: frozenset[str]
    summed: frozenset[str]


def resolve_condition(e: Expression, scope: Scope, facts: tuple[Facts, ...]) -> Expression:
    """The condition in resolved form.

    Raises:
        EinsumSyntaxError: it names an index that a statement below does not use, or may not be restricted by.
        NotAffineError: it reads data, or is not affine.
    """
    resolved = _names(e, scope, facts)
    require_condition(resolved, role="an `if` condition")
    return resolved


def _names(e: Expression, scope: Scope, facts: tuple[Facts, ...]) -> Expression:
    match e:
        case Name():
            return _name(e, scope, facts)
        case _:
            if hasattr(e, "tensor") or hasattr(e, "items"):
                return _refuse_data(e)
            return map_children(e, lambda child: _names(child, scope, facts))


def _refuse_data(e: Expression) -> Expression:
    hint = "conditions on data go into where(condition, value, other)"
    raise EinsumSyntaxError("an `if` condition is about indices, not about data", span=e.span, hint=hint)


def _name(e: Name, scope: Scope, facts: tuple[Facts, ...]) -> Expression:
    word = e.identifier
    name = scope.safe(word)
    is_index = looks_like_index(word) and word not in scope.loops and word not in scope.sizes and word not in CONSTANTS
    if not is_index or not any(name in fact.free for fact in facts):
        used = f"no statement under this `if` uses an index {word!r}" if is_index else None
        bound = "the index of a reducer is restricted among its items: sum[k, k < n](...)"
        return scope.value_of(word, e.span, bound if used else None)
    for fact in facts:
        _check_use(e, name, fact)
    return IndexRef(name, e.span)


def _check_use(e: Name, name: str, fact: Facts) -> None:
    word, statement = e.identifier, fact.statement
    where = f"line {statement.span.line + statement.span.source.first_line - 1}"
    if name not in fact.free:
        message = f"the `if` names the index {word!r}, which the statement in {where} does not use"
        raise EinsumSyntaxError(message, span=e.span, hint="give that statement an `if` of its own")
    if name not in fact.missing:
        return
    if statement.op == "=":
        message = f"the `if` names {word!r}, which the left side of the `=` in {where} lacks"
        hint = f"put the condition into the reducer: sum[{word}, ...](...)"
        raise EinsumSyntaxError(message, span=e.span, hint=hint)
    if name not in fact.summed:
        message = f"the `if` names {word!r}, but not every term of the statement in {where} is summed over it"
        hint = f"write the terms as statements of their own, or the reducer: sum[{word}, ...](...)"
        raise EinsumSyntaxError(message, span=e.span, hint=hint)
