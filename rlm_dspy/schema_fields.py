"""The parts of a type that is made from a JSON Schema: constants, bounds, patterns, and the pydantic models."""

from __future__ import annotations

import decimal as decimals
import json
import keyword
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

import pydantic
from pydantic_core import SchemaError, to_jsonable_python

MAX_PATTERNS = 8
"""Patterns that the schemas of one call may have."""
MAX_PATTERN = 200
"""Characters of a pattern."""
MAX_REPEATS = 100
"""What the upper counts of a pattern, such as the 5 of ``{2,5}``, may multiply to: it is compiled to that size."""

_COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_LOOK_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]|\(\?P=")
_REFUSED = (
    pydantic.errors.PydanticUserError,
    pydantic.errors.PydanticUndefinedAnnotation,
    SchemaError,
    TypeError,
    ValueError,
    NameError,
    RecursionError,
    OverflowError,
)


class SchemaModel(pydantic.BaseModel):
    """Base of the models that are made from JSON Schemas: what code in the sandbox sees has the schema's own names."""

    model_config = pydantic.ConfigDict(populate_by_name=True, protected_namespaces=())


class _Closed(SchemaModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class _Open(SchemaModel):
    model_config = pydantic.ConfigDict(extra="allow")


@dataclass
class Draft:
    """A model in the making.

    Attributes:
        name: Of the class.
        description: The schema's, or None.
        place: Where it stands, for errors.
        nullable: What may be left out, and has no default, may be null.
        extra: Whether further properties are kept (True), refused (False) or passed over (None), or their type.
        model: The class, once it has been created.
    """

    name: str
    description: Any
    place: str
    nullable: bool = True
    extra: Any = None
    model: type[SchemaModel] | None = None
    fields: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)

    def add(self, title: str, annotation: Any, schema: Any, required: bool) -> None:
        """Add the property ``title``, whose own schema gives its default and description."""
        name = attribute(title)
        while name in self.fields:
            name += "_"
        options: dict[str, Any] = {"alias": title} if name != title else {}
        notes = schema if isinstance(schema, dict) else {}
        if isinstance(notes.get("description"), str):
            options["description"] = notes["description"]
        if not required and "default" not in notes and self.nullable:
            # Models write null for what they do not know, and formats that require every property leave nothing else.
            annotation = Optional[annotation]  # noqa: UP045
        if not required or "default" in notes:
            default = notes.get("default")
            options["default"] = default
            plain = notes.get("type") in ("string", "integer", "number", "boolean") and "format" not in notes
            if default is not None and not plain:
                # JSON has no dates, sets and models: such a default takes its type when it is used.
                options["validate_default"] = True
                self.defaults[name] = default
        self.fields[name] = annotation, pydantic.Field(**options)

    def create(self) -> type[SchemaModel]:
        """The class; types that it refers to may not be complete yet.

        Raises:
            ValueError: pydantic cannot make a model of it.
        """
        base: type[SchemaModel] = {True: _Open, False: _Closed, None: SchemaModel}.get(
            self.extra if isinstance(self.extra, (bool, type(None))) else True, SchemaModel
        )
        if not isinstance(self.extra, (bool, type(None))):
            space = {"__annotations__": {"__pydantic_extra__": dict[str, self.extra]}, "__module__": __name__}  # type: ignore[name-defined]
            base = type(self.name, (_Open,), space)
        description = self.description if isinstance(self.description, str) else None
        with refusing(self.place):
            self.model = pydantic.create_model(  # type: ignore[call-overload]
                self.name, __base__=base, __module__=__name__, __doc__=description, **self.fields
            )
        assert self.model is not None
        return self.model


class refusing:  # noqa: N801
    """A context in which pydantic's errors about a type become a ValueError that says where the type stands."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, _REFUSED):
            lines = str(error).strip().splitlines() or [type(error).__name__]
            text = " ".join(line.strip() for line in lines if "errors.pydantic.dev" not in line)
            raise ValueError(f"{self._place}: {text[:300]}") from None


def complete(drafts: list[Draft], namespace: dict[str, Any]) -> None:
    """Join models that refer to each other, and check their defaults.

    Raises:
        ValueError: They cannot be joined, or a default does not fit its type.
    """
    for draft in drafts:
        assert draft.model is not None
        with refusing(draft.place):
            draft.model.model_rebuild(force=True, _types_namespace=namespace)
    for draft in drafts:
        assert draft.model is not None
        for name, default in draft.defaults.items():
            with refusing(f"{draft.place}.{name}: its default does not fit its type"):
                draft.model.__pydantic_validator__.validate_assignment(draft.model.model_construct(), name, default)


@dataclass
class Patterns:
    """The patterns of one call, counted: each is compiled, to a size of its own."""

    used: int = 0

    def checked(self, pattern: Any, place: str) -> str | None:
        """``pattern``, if it is one that is small and takes linear time.

        Raises:
            ValueError: It is too long, repeats too much, or looks around.
        """
        if pattern is None:
            return None
        if not isinstance(pattern, str):
            raise ValueError(f"{place}: pattern is a text")
        if _LOOK_AROUND.search(pattern):
            raise ValueError(f"{place}: a pattern without look-ahead, look-behind and back-references is wanted")
        repeats = 1
        for low, high in _COUNT.findall(pattern):
            repeats *= max(int(high[:9] or 0), int(low[:9] or 0), 1)
        if len(pattern) > MAX_PATTERN or repeats > MAX_REPEATS:
            raise ValueError(
                f"{place}: a pattern has at most {MAX_PATTERN} characters, and its counts multiply to no more than "
                f"{MAX_REPEATS}; check the values in code instead"
            )
        self.spend(1, place)
        return pattern

    def spend(self, patterns: int, place: str) -> None:
        """Account for ``patterns`` more.

        Raises:
            ValueError: They are too many.
        """
        self.used += patterns
        if self.used > MAX_PATTERNS:
            raise ValueError(f"{place}: more than {MAX_PATTERNS} patterns; check the values in code instead")


def limited(annotation: Any, place: str, **bounds: Any) -> Any:
    """``annotation`` with those ``bounds`` (as ``pydantic.Field`` names them) that are not None.

    Raises:
        ValueError: They do not go with the type.
    """
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    if not given:
        return annotation
    if "pattern" in given:
        with refusing(place):
            pydantic.TypeAdapter(Annotated[annotation, pydantic.Field(**given)])
    return Annotated[annotation, pydantic.Field(**given)]


def choice(schema: dict[str, Any], place: str) -> tuple[Any, int]:
    """The ``Literal`` of an ``enum`` or ``const``, and how many constants it has.

    Raises:
        ValueError: There are none, or some are no constants.
    """
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if not isinstance(values, list) or not values:
        raise ValueError(f"{place}: enum is a list of texts, numbers, true, false or null, with one at least")
    if any(not isinstance(value, (str, int, float, bool, type(None))) for value in values):
        raise ValueError(f"{place}: enum and const take texts, numbers, true, false and null; for others use anyOf")
    return Literal[tuple(values)], len(values)


def is_decimal(choices: list[Any]) -> bool:
    """True for what pydantic writes of a ``Decimal`` in those of its versions that give it a pattern."""
    if len(choices) != 2 or not all(isinstance(part, dict) for part in choices):
        return False
    pattern = choices[1].get("pattern")
    shape = choices[0].get("type"), choices[1].get("type")
    return shape == ("number", "string") and isinstance(pattern, str) and pattern.startswith("^(?!^[-+.]*$)")


def decimal(schema: dict[str, Any], place: str) -> Any:
    """A ``Decimal`` with the bounds of the number in its schema."""
    words = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
    return limited(decimals.Decimal, place, **{name: number(schema, word, place) for word, name in words.items()})


def count(schema: dict[str, Any], word: str, place: str) -> int | None:
    """The whole number of a keyword such as ``minItems``, or None."""
    value = schema.get(word)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(f"{place}: {word} is a whole number from 0 on")
    return value


def number(schema: dict[str, Any], word: str, place: str) -> int | float | None:
    """The number of a keyword such as ``minimum``, or None."""
    value = schema.get(word)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{place}: {word} is a number")
    if word == "multipleOf" and value <= 0:
        raise ValueError(f"{place}: multipleOf is a number above 0")
    if abs(value) > 1e300:
        raise ValueError(f"{place}: {word} is out of range")
    if schema.get("type") == "integer" and value == int(value):
        return int(value)
    if schema.get("type") == "integer":
        raise ValueError(f"{place}: {word} of an integer is a whole number")
    return value


def unique(items: list[Any]) -> list[Any]:
    """``items``, where no two are equal."""
    seen = {json.dumps(to_jsonable_python(item, fallback=repr), sort_keys=True) for item in items}
    if len(seen) < len(items):
        raise ValueError("the items must differ from each other")
    return items


def attribute(title: str) -> str:
    """The Python name of a property: its own where that is possible."""
    name = re.sub(r"\W", "_", title).strip("_") or "field"
    name = f"n_{name}" if name[0].isdigit() else name
    if not name.isidentifier():
        name = "field"
    taken = keyword.iskeyword(name) or hasattr(pydantic.BaseModel, name) or name.startswith("model_")
    return f"{name}_" if taken else name


def class_name(title: str) -> str:
    """A name for a class, of a property's or a schema's."""
    words = re.findall(r"[A-Za-z0-9]+", title)[:6]
    name = "".join(word[0].upper() + word[1:] for word in words)[:60]
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"Type{name}"


def singular(name: str) -> str:
    """What one of many is called: ``Tags`` gives ``Tag``."""
    return name[:-1] if name.endswith("s") and len(name) > 3 and not name.endswith("ss") else f"{name}Item"
