"""isl AST expressions -> index arithmetic: `Affine` where the value is quasi-affine, a typed `Expr` for conditions and selections.

isl names its iterators `c0`, `c1`, ... after their schedule depth; they come out as variables of those names. Divisions follow the isl manual,
section "Abstract Syntax Trees": `fdiv_q` rounds down, `pdiv_q` and `pdiv_r` have a dividend that is not negative, `zdiv_r` is only compared with
zero and `div` is exact, so that all of them are floor divisions here.
"""

from __future__ import annotations

import islpy as isl

from polyml.codegen.rewrite import variables_of
from polyml.dtypes import boolean, i64
from polyml.errors import CodegenError
from polyml.expressions import Apply, Const, Expr, IndexValue
from polyml.sets.affine import Affine, affine, maximum, minimum
from polyml.sets.affine_conditions import condition_text

__all__ = ["affine_cases", "affine_from_ast", "condition_from_ast", "conjuncts"]

_Op = isl.ast_expr_op_type
_AND, _OR = _Op(0), _Op(2)  # and_ and or_, which islpy's type stubs leave out
_COMPARISONS = {_Op.eq: "eq", _Op.le: "le", _Op.lt: "lt", _Op.ge: "ge", _Op.gt: "gt"}
_LOGICAL = {_AND: "and", _Op.and_then: "and", _OR: "or", _Op.or_else: "or"}


def affine_from_ast(expr: isl.AstExpr) -> Affine:
    """The quasi-affine value of an isl AST expression.

    Raises:
        CodegenError: when isl chose a form that is not quasi-affine (values by cases that are no number apart, and neither always the larger one nor always the smaller one).
    """
    kind = isl.ast_expr_type(expr.get_type())
    if kind == isl.ast_expr_type.id:
        return affine(expr.id_get_id().get_name())
    if kind == isl.ast_expr_type.int:
        return affine(expr.int_get_val().to_python())
    op = _Op(expr.op_get_type())
    args = _arguments(expr)
    if op in (_Op.max, _Op.min):
        return (maximum if op == _Op.max else minimum)(affine_from_ast(arg) for arg in args)
    if op == _Op.minus:
        return -affine_from_ast(args[0])
    if op in (_Op.select, _Op.cond):
        return _by_cases(expr, *args)
    if len(args) != 2:
        raise CodegenError(f"an index expression that is not quasi-affine: {expr.to_C_str()}")
    left, right = affine_from_ast(args[0]), affine_from_ast(args[1])
    if op == _Op.add:
        return left + right
    if op == _Op.sub:
        return left - right
    if op == _Op.mul and left.is_constant:
        return right * left.constant
    if not right.is_constant:
        raise CodegenError(f"an index expression that is not quasi-affine: {expr.to_C_str()}")
    if op == _Op.mul:
        return left * right.constant
    if op in (_Op.fdiv_q, _Op.pdiv_q, _Op.div):
        return left // right.constant
    if op in (_Op.pdiv_r, _Op.zdiv_r):
        return left % right.constant
    raise CodegenError(f"an index expression that is not quasi-affine: {expr.to_C_str()}")


def _by_cases(expr: isl.AstExpr, test: isl.AstExpr, if_true: isl.AstExpr, if_false: isl.AstExpr) -> Affine:
    """`test ? a : b` as b and, where the test holds, what a is more than b, if that is a number; or as the larger or smaller of the two."""
    value, other = affine_from_ast(if_true), affine_from_ast(if_false)
    more = value - other
    if more.is_constant:
        return other + _indicator(test) * more.constant
    condition = condition_from_ast(test)
    for sign, extremum in ((1, maximum), (-1, minimum)):
        if _never(condition, more * sign + 1, negated=False) and _never(condition, -more * sign + 1, negated=True):
            return extremum([value, other])
    raise CodegenError(f"an index expression by cases is not supported: {expr.to_C_str()}")


def _never(condition: Expr, value: Affine, *, negated: bool) -> bool:
    """Whether for no whole numbers the condition (or its negation) holds and the value is zero or less."""
    text = condition_text(condition, negated=negated)
    if text is None:
        return False
    variables = sorted(variables_of(condition) | value.variables())
    return bool(isl.Set(f"{{ [{', '.join(variables)}] : {text} and {value.isl_text()} <= 0 }}").is_empty())


def _indicator(test: isl.AstExpr) -> Affine:
    """1 where the condition holds, 0 where it does not: for whole numbers `e >= 0` is min(1, max(0, e + 1))."""
    op, args = _Op(test.op_get_type()), _arguments(test)
    if op in _LOGICAL:
        return (minimum if _LOGICAL[op] == "and" else maximum)(map(_indicator, args))
    if op not in _COMPARISONS:
        raise CodegenError(f"an index expression by cases is not supported: {test.to_C_str()}")
    more = affine_from_ast(args[0]) - affine_from_ast(args[1])
    signs = {"ge": (more,), "gt": (more - 1,), "le": (-more,), "lt": (-more - 1,), "eq": (more, -more)}
    return minimum(minimum([affine(1), maximum([affine(0), sign + 1])]) for sign in signs[_COMPARISONS[op]])


def affine_cases(expr: isl.AstExpr) -> list[tuple[tuple[Expr, ...], Affine]]:
    """The values of an expression by cases, each with the conditions under which it is meant; one case without any where there are none."""
    is_operation = isl.ast_expr_type(expr.get_type()) == isl.ast_expr_type.op
    if not is_operation or _Op(expr.op_get_type()) not in (_Op.select, _Op.cond):
        return [((), affine_from_ast(expr))]
    test, if_true, if_false = _arguments(expr)
    condition = condition_from_ast(test)
    found = [((condition, *more), value) for more, value in affine_cases(if_true)]
    other = Apply("not", (condition,), boolean)
    return found + [((other, *more), value) for more, value in affine_cases(if_false)]


def condition_from_ast(expr: isl.AstExpr) -> Expr:
    """The bool `Expr` of an isl condition: comparisons of index values joined by and, or."""
    if isl.ast_expr_type(expr.get_type()) == isl.ast_expr_type.int:
        return Const(bool(expr.int_get_val().to_python()), boolean)
    op = _Op(expr.op_get_type()) if isl.ast_expr_type(expr.get_type()) == isl.ast_expr_type.op else None
    if op in _COMPARISONS:
        left, right = (_value_from_ast(arg) for arg in _arguments(expr))
        return Apply(_COMPARISONS[op], (left, right), boolean)
    if op in _LOGICAL:
        left, right = (condition_from_ast(arg) for arg in _arguments(expr))
        return Apply(_LOGICAL[op], (left, right), boolean)
    if op in (_Op.select, _Op.cond):
        test, yes, no = (condition_from_ast(arg) for arg in _arguments(expr))
        both = Apply("and", (test, yes), boolean)
        return Apply("or", (both, Apply("and", (Apply("not", (test,), boolean), no), boolean)), boolean)
    return Apply("ne", (_value_from_ast(expr), Const(0, i64)), boolean)


def conjuncts(expr: isl.AstExpr) -> list[isl.AstExpr]:
    """The parts of a conjunction, in order."""
    if isl.ast_expr_type(expr.get_type()) == isl.ast_expr_type.op and _Op(expr.op_get_type()) in (
        _AND,
        _Op.and_then,
    ):
        return [part for arg in _arguments(expr) for part in conjuncts(arg)]
    return [expr]


def _value_from_ast(expr: isl.AstExpr) -> Expr:
    if isl.ast_expr_type(expr.get_type()) == isl.ast_expr_type.op and _Op(expr.op_get_type()) in (_Op.select, _Op.cond):
        test, yes, no = _arguments(expr)
        return Apply("select", (condition_from_ast(test), _value_from_ast(yes), _value_from_ast(no)), i64)
    return IndexValue(affine_from_ast(expr), i64)


def _arguments(expr: isl.AstExpr) -> list[isl.AstExpr]:
    return [expr.op_get_arg(position) for position in range(expr.op_get_n_arg())]
