"""`dataclass`, as in the standard library, in a quarter of the time.

polyml has some two hundred record classes, and the standard library takes half a millisecond to make a frozen one: it compiles six functions for each, which was half of what the
first call of a program waited for. Here only `__init__` is compiled; the other methods are shared closures. What type checkers see, and what `dataclasses.replace`, `fields` and
`field` do with the classes, is the same. Anything unusual (inheritance from a record, ClassVar, InitVar, order, init=False) is left to the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses
    from operator import attrgetter
    from reprlib import recursive_repr

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False, eq=True, **more):
        """dataclasses.dataclass."""

        def make(cls):
            if more or _is_unusual(cls):
                options = {"frozen": frozen, "slots": slots, "kw_only": kw_only, "eq": eq, **more}
                return dataclasses.dataclass(**options)(cls)
            return _record(cls, frozen, slots, kw_only, eq)

        return make if cls is None else make(cls)

    def _is_unusual(cls):
        special = ("ClassVar", "InitVar", "KW_ONLY", "typing.ClassVar", "dataclasses.InitVar")
        own = [value for value in cls.__dict__.values() if isinstance(value, dataclasses.Field)]
        return (
            any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__[1:])
            or any(field.kw_only is True for field in own)
            or any(not isinstance(type_, str) or type_.startswith(special) for type_ in cls.__annotations__.values())
        )

    def _record(cls, frozen, slots, kw_only, eq):
        fields = {name: _field(cls, name, type_, kw_only) for name, type_ in cls.__annotations__.items()}
        if slots:
            kept = {k: v for k, v in cls.__dict__.items() if k not in fields and k not in ("__dict__", "__weakref__")}
            qualified = cls.__qualname__
            cls = type(cls)(cls.__name__, cls.__bases__, {**kept, "__slots__": tuple(fields)})
            cls.__qualname__ = qualified
        else:
            for name, field in fields.items():
                if field.default is not dataclasses.MISSING:
                    setattr(cls, name, field.default)
                elif name in cls.__dict__:
                    delattr(cls, name)
        cls.__dataclass_fields__ = fields
        made = {"__match_args__": () if kw_only else tuple(f.name for f in fields.values() if f.init)}
        made["__init__"] = _initializer(cls, fields, frozen, slots, kw_only)
        made["__repr__"] = _repr([f.name for f in fields.values() if f.repr])
        compared = _values([f.name for f in fields.values() if f.compare])
        if eq:
            made |= {"__eq__": _equality(compared), "__hash__": _hash(compared) if frozen else None}
        if frozen:
            made |= _guards(cls, frozenset(fields))
            if slots:
                made |= _state(tuple(fields))
        for name, value in made.items():
            if name not in cls.__dict__ or (name == "__hash__" and cls.__dict__[name] is None):
                setattr(cls, name, value)
        return cls

    def _field(cls, name, type_, kw_only):
        default = cls.__dict__.get(name, dataclasses.MISSING)
        field = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
        field.name, field.type, field.kw_only = name, type_, kw_only
        field._field_type = dataclasses._FIELD
        return field

    def _initializer(cls, fields, frozen, slots, kw_only):
        """The one method that is compiled: it runs often. Slots are set by their descriptors, which a frozen class's `__setattr__` does not guard."""
        parameters, body, known = [], [], {"missing": dataclasses.MISSING, "put": object.__setattr__}
        for name, field in fields.items():
            value = name
            if field.default_factory is not dataclasses.MISSING:
                known[f"make_{name}"] = field.default_factory
                value = f"make_{name}() if {name} is missing else {name}" if field.init else f"make_{name}()"
            elif not field.init and field.default is dataclasses.MISSING:
                continue
            elif field.default is not dataclasses.MISSING:
                known[f"default_{name}"] = field.default
                value = name if field.init else f"default_{name}"
            if field.init:
                optional = field.default_factory is not dataclasses.MISSING
                default = "=missing" if optional else f"=default_{name}" if f"default_{name}" in known else ""
                parameters.append(f"{name}{default}")
            if frozen and slots:
                known[f"set_{name}"] = cls.__dict__[name].__set__
                body.append(f"set_{name}(self, {value})")
            else:
                body.append(f"put(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        head = ", ".join(["self", *(["*"] if kw_only and parameters else []), *parameters])
        exec(f"def __init__({head}):\n " + "\n ".join(body or ["pass"]), known)
        known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
        return known["__init__"]

    def _values(names):
        """A function from a record to the tuple of these fields."""
        if len(names) > 1:
            return attrgetter(*names)
        if not names:
            return lambda self: ()
        one = attrgetter(names[0])
        return lambda self: (one(self),)

    def _repr(names):
        @recursive_repr()
        def __repr__(self):
            inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            return f"{self.__class__.__qualname__}({inside})"

        return __repr__

    def _equality(values):
        def __eq__(self, other):
            if other.__class__ is self.__class__:
                return values(self) == values(other)
            return NotImplemented

        return __eq__

    def _hash(values):
        def __hash__(self):
            return hash(values(self))

        return __hash__

    def _guards(cls, names):
        def __setattr__(self, name, value):
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            object.__delattr__(self, name)

        return {"__setattr__": __setattr__, "__delattr__": __delattr__}

    def _state(names):
        """For copy and pickle, which cannot set the fields of a frozen object."""

        def __getstate__(self):
            return [getattr(self, name) for name in names]

        def __setstate__(self, state):
            for name, value in zip(names, state, strict=True):
                object.__setattr__(self, name, value)

        return {"__getstate__": __getstate__, "__setstate__": __setstate__}
