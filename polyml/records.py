"""`dataclass`, several times faster to create: the standard library compiles six functions one by one for each frozen class, this one three, when they are first called, once for
all classes with as many fields of the same kinds.

A compiler written in dataclasses has hundreds of them, and before its first kernel a process waits for all: with the standard library's decorator (0.5 ms each, Python
3.11 to 3.13) they took a third of the time that a small program's first call took. Type checkers see the standard library's, and what it makes
(fields, `replace`, `match`, `FrozenInstanceError`) works here too. Left out is what polyml does not use: `order`, `unsafe_hash`, `weakref_slot`, `InitVar`.

How classes share code: a method is written with numbers in place of the names of fields. For all classes of two fields, frozen and with slots, the text is the same,

    def __init__(self, _0_, _1_):
        _set_0_(self, _0_)
        _set_1_(self, _1_)

and it is compiled once (`_compiled`). Code refers to names by their positions in a few tuples of its own (parameters, attributes, strings), and to globals by name; so a class gets a copy of the code
object with its fields' names in these tuples (`_renamed`, by the documented `code.replace`), and a function with globals of its own, which hold defaults and setters (`_initializer`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "replace"]

Fields = tuple[dataclasses.Field[Any], ...]


class _Factory:
    """What a signature shows as the default of a field with a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()
_MISSING = object()

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """`dataclasses.dataclass`, with the options init, repr, eq, frozen, slots and kw_only."""
        return _made(cls, **options) if cls is not None else lambda cls: _made(cls, **options)

    def replace(record: Any, /, **changes: object) -> Any:
        """`dataclasses.replace`, in a third of the time for frozen classes with slots: for what rewrites trees."""
        return (_REPLACERS.get(record.__class__) or _replacer(record.__class__))(record, **changes)


_REPLACERS: dict[type, Any] = {}
"""By class what makes a copy with some fields changed."""


def _made(
    cls: type, *, init: bool = True, repr: bool = True, eq: bool = True,
    frozen: bool = False, slots: bool = False, kw_only: bool = False,
) -> type:  # fmt: skip
    own = set(cls.__dict__) - ({"__hash__"} if "__eq__" in cls.__dict__ and cls.__hash__ is None else set())
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library writes the signature there, which takes long
    cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
    fields = dataclasses.fields(cls)
    methods: dict[str, Any] = {}
    if init:
        methods["__init__"] = _Later(cls, "__init__", lambda: _initializer(cls, fields, frozen=frozen, slots=slots))
    if eq:
        methods["__eq__"] = _Later(cls, "__eq__", lambda: _comparison(fields))
        methods["__hash__"] = _Later(cls, "__hash__", lambda: _hash_function(fields)) if frozen else None
    if repr:
        methods["__repr__"] = _repr
    if frozen:
        methods |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
    for name, method in methods.items():
        if name not in own or name == "__init__":
            setattr(cls, name, method)
    return cls


class _Later:
    """Stands in a class where a method belongs that is made when it is first looked up."""

    __slots__ = ("make", "name", "owner")

    def __init__(self, owner: type, name: str, make: Callable[[], FunctionType]) -> None:
        self.owner, self.name, self.make = owner, name, make

    def __get__(self, instance: object, _: type | None = None) -> object:
        method = self.make()
        method.__qualname__, method.__module__ = f"{self.owner.__qualname__}.{self.name}", self.owner.__module__
        setattr(self.owner, self.name, method)
        return method.__get__(instance, self.owner)


def _initializer(cls: type, fields: Fields, *, frozen: bool, slots: bool) -> FunctionType:
    """`__init__`, which reads the globals `known`; where assignment is refused, fields are set through the descriptors of their slots."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": _FACTORY}
    names: dict[str, str] = {}
    positional, keyword, body = ["self"], list[str](), list[str]()
    defaults: list[object] = []
    keyword_defaults: dict[str, object] = {}
    for k, field in enumerate(fields):
        name = value = f"_{k}_"
        names[name] = field.name
        default: object = dataclasses.MISSING
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make{name}"] = field.default_factory
            default = _FACTORY
            value = f"_make{name}() if {name} is _missing else {name}" if field.init else f"_make{name}()"
        elif field.default is not dataclasses.MISSING:
            known[f"_default{name}"] = default = field.default
            value = name if field.init else f"_default{name}"
        elif not field.init:
            continue  # __post_init__ sets it
        if field.init:
            optional = default is not dataclasses.MISSING
            (keyword if field.kw_only else positional).append(f"{name}=None" if optional else name)
            if optional and field.kw_only:
                keyword_defaults[field.name] = default
            elif optional:
                defaults.append(default)
        if frozen and slots:
            known[f"_set{name}"] = getattr(cls, field.name).__set__
            body.append(f"_set{name}(self, {value})")
        else:
            body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (["*", *keyword] if keyword else []))
    text = f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"])
    made = FunctionType(_renamed(_compiled(text), names), known, "__init__", tuple(defaults))
    made.__kwdefaults__ = keyword_defaults or None
    made.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return made


def _replacer(cls: type) -> Any:
    """The class's function for `replace`: it sets the fields of a new object, without `__init__`; the standard library's where there is more to making one."""
    fields = dataclasses.fields(cls)
    own = vars(cls).get("__setattr__") is _refuse_assignment and "__slots__" in vars(cls)
    if not own or hasattr(cls, "__post_init__") or not all(field.init for field in fields):
        return _REPLACERS.setdefault(cls, dataclasses.replace)
    known: dict[str, Any] = {"_new": object.__new__, "_class": cls, "_missing": _MISSING}
    names, parameters, body = dict[str, str](), list[str](), list[str]()
    for k, field in enumerate(fields):
        name = f"_{k}_"
        names[name] = field.name
        known[f"_set{name}"] = getattr(cls, field.name).__set__
        parameters.append(f"{name}=None")
        body.append(f"_set{name}(made, _self.{name} if {name} is _missing else {name})")
    text = f"def replace(_self, {', '.join(parameters)}):\n made = _new(_class)\n " + "\n ".join([*body, "return made"])
    made = FunctionType(_renamed(_compiled(text), names), known, "replace", (_MISSING,) * len(fields))
    return _REPLACERS.setdefault(cls, made)


def _comparison(fields: Fields) -> FunctionType:
    """`__eq__`: the same class, and the same values."""
    names = _compared(fields)
    test = f"{_values('self', names)} == {_values('other', names)} if other.__class__ is self.__class__ else NotImplemented"
    return _method(f"def __eq__(self, other):\n return {test}", names)


def _hash_function(fields: Fields) -> FunctionType:
    """`__hash__`: of the values that are compared."""
    names = _compared(fields)
    return _method(f"def __hash__(self):\n return hash({_values('self', names)})", names)


def _compared(fields: Fields) -> dict[str, str]:
    """The fields that are compared, by the numbers that stand for them in a text."""
    return {f"_{k}_": name for k, name in enumerate(field.name for field in fields if field.compare)}


def _values(of: str, names: Mapping[str, str]) -> str:
    """The text of a tuple of an object's fields."""
    return "(" + "".join(f"{of}.{name}, " for name in names) + ")"


def _method(text: str, names: Mapping[str, str]) -> FunctionType:
    """The function in the text, which refers to no globals."""
    return FunctionType(_renamed(_compiled(text), names), {}, text[4 : text.index("(")])


@functools.cache
def _compiled(text: str) -> CodeType:
    """The code of the one function in the text."""
    return next(code for code in compile(text, "<record>", "exec").co_consts if isinstance(code, CodeType))


def _renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """The code with other names for fields: as arguments, attributes and strings."""
    return code.replace(
        co_varnames=tuple(names.get(name, name) for name in code.co_varnames),
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(names.get(value, value) if isinstance(value, str) else value for value in code.co_consts),
    )


def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_assignment(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
