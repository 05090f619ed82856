"""Names in the expressions of one statement, told apart.

- In a subscript, a lower-case name is an index, unless it is a parameter, a loop variable in scope, or a 0-d tensor assigned before. The same name elsewhere in
  the statement is that index's value.
- A reducer binds its plain items, and the r of an item `r < e`, `r <= e`, `0 <= r < e` (and `0 <= r <= e`) unless the left side, a loop or an enclosing reducer has an r.
- Bound indices keep their name where it is free; else they get a suffix: within one statement no two bindings share a name, and none is a left index, an
  implied-sum index, a size, a tensor or a loop variable.

Choices where the language page is silent: a plain item shadows a loop variable or a 0-d tensor, like the variable of a comprehension, but a parameter or a size is
refused; so is a reducer that binds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from polyml.einsum_frontend.affine_form import require_affine, require_condition
from polyml.einsum_frontend.names import RESERVED, fresh_name, looks_like_index, looks_like_size
from polyml.einsum_frontend.scope import Scope
from polyml.einsum_frontend.syntax import (
    Binary,
    Compare,
    Expression,
    IndexRef,
    Name,
    Number,
    Pad,
    Reducer,
    Subscript,
    Unary,
)
from polyml.einsum_frontend.walk import children, map_children, walk
from polyml.einsum_frontend.whole_numbers import check_whole_numbers
from polyml.errors import EinsumSyntaxError
from polyml.records import dataclass
from polyml.source import Span

__all__ = ["Names", "free_indices", "resolve_expression", "resolve_subscript"]


@dataclass(slots=True)
class Names:
    """The names of one statement: its left indices, all indices that no reducer binds, and the names that bound ones got so far."""

    scope: Scope
    left: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    bound_names: set[str] = field(default_factory=set)
    bound_words: set[str] = field(default_factory=set)

    def name_for_bound(self, word: str) -> str:
        """A name for a newly bound index `word` that nothing else in the statement has."""
        scope = self.scope
        clashes = {
            *(scope.safe(name) for name in self.free),
            *(scope.safe(name) for name in scope.sizes),
            *(scope.safe(name) for name in scope.loops),
            *(scope.safe(name) for name in scope.tensors),
            *self.bound_names,
        }
        name = scope.safe(word)
        if name in clashes:
            name = fresh_name(name, {*clashes, *scope.taken, *scope.safe_names.values()})
        self.bound_names.add(name)
        self.bound_words.add(word)
        return name


def free_indices(e: Expression, scope: Scope, left: frozenset[str]) -> frozenset[str]:
    """The names that stand in a subscript of the parsed `e` and are indices which no reducer inside it binds."""
    found: set[str] = set()
    stack: list[tuple[Expression, frozenset[str], bool]] = [(e, frozenset(), False)]
    while stack:
        node, bound, inside = stack.pop()
        match node:
            case Name(identifier=name):
                if inside and name not in bound and scope.may_be_index(name):
                    found.add(name)
            case Subscript():
                stack.extend((subscript, bound, True) for subscript in node.subscripts)
            case Reducer():
                within = bound | set(_binds(node, scope, left, bound))
                stack.extend((child, within, False) for child in children(node))
            case _:
                stack.extend((child, bound, inside) for child in children(node))
    return frozenset(found)


def _binds(e: Reducer, scope: Scope, left: frozenset[str], bound: frozenset[str]) -> dict[str, Span]:
    """The words that a parsed reducer binds, with the place of each."""
    plain = {item.identifier for item in e.items if isinstance(item, Name)}
    words: dict[str, Span] = {}
    for item in e.items:
        name = item if isinstance(item, Name) else _bounded_by(item)
        if name is None:
            continue
        word = name.identifier
        if item is name or (word not in plain | left | bound and scope.may_be_index(word)):
            words.setdefault(word, name.span)
    return words


def _bounded_by(item: Expression) -> Name | None:
    """The r of `r < e`, `r <= e`, `0 <= r < e`, `0 <= r <= e`."""
    match item:
        case Compare(operands=(Name() as name, _), ops=("<" | "<=",)):
            return name
        case Compare(operands=(Number(value=0), Name() as name, _), ops=("<=", "<" | "<=")):
            return name
        case _:
            return None


def _unnamed(e: Reducer, scope: Scope, left: frozenset[str], bound: frozenset[str]) -> str | None:
    """A word among its conditions that nothing has bound: `k` of `sum[k >= m]`, which bounds nothing from above."""
    words = (n.identifier for item in e.items for n in walk(item) if isinstance(n, Name))
    return next((word for word in words if word not in left | bound and scope.may_be_index(word)), None)


def resolve_expression(e: Expression, names: Names, bound: Mapping[str, str], *, subscript: bool = False) -> Expression:
    """`e` in resolved form. `bound`: word -> name of the indices that enclosing reducers bind. `subscript`: `e` stands in one.

    Raises:
        EinsumSyntaxError: an undefined name, a wrong rank, a reducer that does not bind what it should, a number beyond 64 bits.
        NotAffineError: a subscript or condition that is not quasi-affine.
    """
    match e:
        case Name(identifier=word):
            if subscript and word not in bound:
                _check_not_gone(word, e.span, names.scope)
            return _name(e, word, names, bound, subscript)
        case Subscript():
            if subscript and isinstance(e.tensor, Pad):
                hint = "assign it to a tensor first"
                raise EinsumSyntaxError("`pad` cannot stand in a subscript", span=e.span, hint=hint)
            return _access(e, names, bound)
        case Reducer():
            return _reducer(e, names, bound)
        case _:
            resolved = map_children(e, lambda child: resolve_expression(child, names, bound, subscript=subscript))
            if isinstance(e, Binary | Unary):
                check_whole_numbers(resolved)
            return resolved


def _name(e: Name, word: str, names: Names, bound: Mapping[str, str], subscript: bool) -> Expression:
    if word in bound:
        return IndexRef(bound[word], e.span)
    scope = names.scope
    if word in names.free:
        return IndexRef(scope.safe(word), e.span)
    hint = None
    if word in names.bound_words:
        hint = f"the {word} of a reducer is known only inside its parentheses"
    elif looks_like_index(word) and len(word) <= 2:
        hint = f"an index stands in a subscript somewhere in its statement; {word!r} does not"
    elif looks_like_size(word) and len(word) <= 2:
        hint = "indices are lower-case; sizes come from the parameters"
    return scope.value_of(word, e.span, hint, subscript=subscript)


def _check_not_gone(word: str, span: Span, scope: Scope) -> None:
    """Refuses a subscript that is an index by the rules, while a reader takes it for a 0-d tensor that ended with its loop."""
    tensor = scope.gone.get(word)
    if tensor is not None and tensor.rank == 0 and scope.may_be_index(word):
        hint = "declare it before the loop; or, if you mean an index, choose another name"
        message = f"{word!r} was made inside a `for` and ended with it: it cannot gather here"
        raise EinsumSyntaxError(message, span=span, hint=hint)


def _access(e: Subscript, names: Names, bound: Mapping[str, str]) -> Subscript:
    scope = names.scope
    word = e.tensor if isinstance(e.tensor, str) else e.tensor.tensor
    scope.tensor(word, e.span, rank=len(e.subscripts))
    subscripts = tuple(resolve_subscript(s, names, bound) for s in e.subscripts)
    tensor: str | Pad = scope.safe(word)
    if isinstance(e.tensor, Pad):
        widths = tuple((_pad_width(a, scope), _pad_width(b, scope)) for a, b in e.tensor.widths)
        tensor = Pad(scope.safe(word), widths, e.tensor.span)
    return replace(e, tensor=tensor, subscripts=subscripts)


def resolve_subscript(e: Expression, names: Names, bound: Mapping[str, str], *, read: bool = True) -> Expression:
    """One subscript in resolved form: quasi-affine, possibly in elements of tensors (a gather). `read`: not on a left side; then `min` and `max` may hold it inside.

    Raises:
        EinsumSyntaxError, NotAffineError: as `resolve_expression`.
    """
    resolved = resolve_expression(e, names, bound, subscript=True)
    require_affine(resolved, role="a subscript", reads=True, extrema=read)
    return resolved


def _pad_width(e: Expression, scope: Scope) -> Expression:
    """A pad width in resolved form: affine in numbers and sizes.

    Raises:
        EinsumSyntaxError, NotAffineError: it is not.
    """
    resolved = resolve_expression(e, Names(scope), {})
    require_affine(resolved, role="a pad width", reads=False)
    return resolved


def _reducer(e: Reducer, names: Names, bound: Mapping[str, str]) -> Reducer:
    scope = names.scope
    plain = [item for item in e.items if isinstance(item, Name)]
    seen: set[str] = set()
    for item in plain:
        _check_item(item, e, scope, twice=item.identifier in seen)
        seen.add(item.identifier)
    words = _binds(e, scope, names.left, frozenset(bound))
    if not words:
        word = _unnamed(e, scope, names.left, frozenset(bound))
        belongs = "what its conditions name belongs to the left side, a loop or another reducer"
        message = f"this {e.kind} binds no index: {belongs if word is None else f'its conditions are no upper bound of {word}'}"
        named = f"{e.kind}[k](x[k])" if word is None else f"{e.kind}[{word}, ..](..), where .. is what it says now"
        hint = f"name the index: {named}; a condition on its own is an `if`, or where(condition, value, other)"
        raise EinsumSyntaxError(message, span=e.span, hint=hint)
    if e.kind in {"argmax", "argmin"} and len(words) != 1:
        hint = "the result is one index; reduce over the others first"
        raise EinsumSyntaxError(f"{e.kind} works over one index, not {len(words)}", span=e.span, hint=hint)
    new = {word: names.name_for_bound(word) for word in words}
    within = {**bound, **new}
    conditions: list[Expression] = []
    for written in e.items:
        if isinstance(written, Name):
            continue
        condition = resolve_expression(written, names, within)
        require_condition(condition, role="a reducer's condition")
        conditions.append(condition)
    items = (*(IndexRef(new[word], span) for word, span in words.items()), *conditions)
    return replace(e, items=items, body=resolve_expression(e.body, names, within))


def _check_item(item: Name, e: Reducer, scope: Scope, *, twice: bool) -> None:
    word = item.identifier
    if twice:
        raise EinsumSyntaxError(f"{word!r} appears twice among the items of {e.kind}", span=item.span)
    if word in scope.sizes or looks_like_size(word):
        what = "a size"
    elif word in RESERVED:
        what = "a word of the language"
    elif word in scope.tensors and scope.tensors[word].is_parameter:
        what = "a parameter"
    elif not looks_like_index(word):
        what = "not lower-case"
    else:
        return
    hint = "a reducer names indices, in lower case; choose another name"
    raise EinsumSyntaxError(f"{e.kind} cannot reduce over {word!r}: it is {what}", span=item.span, hint=hint)
