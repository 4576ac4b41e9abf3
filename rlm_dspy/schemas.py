"""JSON Schema to Python types, for the types that code in the sandbox makes up for its own sub-calls.

What pydantic's ``Model.model_json_schema()`` writes comes back as a model that accepts and refuses the same values, and
schemas written by hand in the same vocabulary work too. Whatever the schema says, nothing of it is evaluated or
imported; size, depth and patterns are bounded, and pydantic's regular expressions take linear time.

Keywords: https://json-schema.org/draft/2020-12 (and OpenAPI's ``nullable``). Less exact than the vocabulary: ``oneOf``
is read as ``anyOf``, an unknown ``format`` is a note, a ``Decimal`` comes back as number or text. A property that may
be left out and has no default is None where it is, and may be null, unless its object has a title: pydantic writes one
always, people hardly ever, and pydantic means what it says.
"""

from __future__ import annotations

import datetime
import ipaddress
import math
import typing
import urllib.parse
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Optional, Union

import pydantic

from rlm_dspy import schema_fields as fields
from rlm_dspy.schema_fields import SchemaModel

__all__ = ["SchemaModel", "build", "check_size"]

MAX_CHARS = 60_000
"""Characters that all texts of the schemas together may have."""
MAX_VALUES = 10_000
"""Values (objects, lists, texts, numbers) in all schemas together."""
MAX_TYPES = 1_000
"""Types that the schemas may stand for, each alias counted as often as it is used."""
MAX_DEPTH = 24
"""Levels of types in types."""
_MAX_LEVELS = 100

_KEYWORDS = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}),
    "object": frozenset(
        "properties required additionalProperties patternProperties propertyNames minProperties maxProperties".split()
    ),
}
_KEYWORDS["integer"] = _KEYWORDS["number"]
_BOUNDS = frozenset().union(*_KEYWORDS.values())
_UNSUPPORTED = frozenset(
    "not if then else allOf dependentRequired dependentSchemas dependencies contains minContains maxContains "
    "unevaluatedProperties unevaluatedItems additionalItems $dynamicRef $recursiveRef $anchor $dynamicAnchor".split()
)
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_MEANT = {
    **{"str": "string", "text": "string", "int": "integer", "float": "number", "bool": "boolean", "none": "null"},
    **{"list": "array", "tuple": "array", "set": "array", "dict": "object", "date": 'string", "format": "date'},
}
_FORMATS: dict[str, Any] = {
    "date": datetime.date,
    "date-time": datetime.datetime,
    "time": datetime.time,
    "duration": datetime.timedelta,
    "binary": bytes,
    "uuid": uuid.UUID,
    **{f"uuid{n}": getattr(pydantic, f"UUID{n}") for n in (1, 3, 4, 5)},
    **{f"ipv{n}{kind}": getattr(ipaddress, f"IPv{n}{kind.capitalize() or 'Address'}")
       for n in (4, 6) for kind in ("", "network", "interface")},
    "uri": pydantic.AnyUrl,
}


@dataclass(frozen=True)
class _Type:
    """A type: its annotation, how many types it stands for, how deep they are nested, whether sets can hold it, and how
    many patterns are in it outside of models."""

    annotation: Any
    weight: int = 1
    depth: int = 1
    hashable: bool = True
    patterns: int = 0


def check_size(schemas: Any) -> None:
    """Refuse schemas that are too large, nested too deep, or no JSON.

    Raises:
        ValueError: Says which bound was passed.
    """
    values = chars = 0
    waiting: list[tuple[Any, int]] = [(schemas, 0)]
    while waiting:
        value, depth = waiting.pop()
        values += 1
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise ValueError(f"types: the keys of a JSON Schema are texts, not {type(key).__name__}")
                chars += len(key)
            waiting += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += [(item, depth + 1) for item in value]
        elif isinstance(value, str):
            chars += len(value)
        elif isinstance(value, int):
            chars += value.bit_length() // 3
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError("types: numbers in a JSON Schema must be finite")
        elif value is not None:
            raise ValueError(
                f"types: a JSON Schema is made of dict, list, str, int, float, bool and None, and holds a "
                f"{type(value).__name__}; for a pydantic model pass Model.model_json_schema()"
            )
        if depth > 4 * MAX_DEPTH:
            raise ValueError(f"types: a schema is nested deeper than {4 * MAX_DEPTH} levels, or contains itself")
        if values + len(waiting) > MAX_VALUES or chars > MAX_CHARS:
            raise ValueError(
                f"types: the schemas are too large (at most {MAX_VALUES:,} values and {MAX_CHARS:,} characters); "
                "name only what the answer needs"
            )


def build(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The type of each schema, by its name.

    Args:
        schemas: Name to JSON Schema. A schema may refer to its own ``$defs`` and to the other names.

    Returns:
        Name to annotation: a `SchemaModel` subclass for an object with properties, else what fits.

    Raises:
        ValueError: A schema is malformed, too large, or says what cannot be expressed; the text says where and what to
            write instead.
    """
    check_size(schemas)
    return _Builder(dict(schemas)).all()


@dataclass
class _Builder:
    documents: dict[str, Any]
    built: dict[tuple[str, str], _Type] = field(default_factory=dict)
    pending: dict[tuple[str, str], str] = field(default_factory=dict)
    namespace: dict[str, Any] = field(default_factory=dict)
    models: list[fields.Draft] = field(default_factory=list)
    patterns: fields.Patterns = field(default_factory=fields.Patterns)
    spent: int = 0
    levels: int = 0

    def all(self) -> dict[str, Any]:
        types = {name: self._target((name, ""), f"types[{name!r}]").annotation for name in self.documents}
        fields.complete(self.models, self.namespace)
        return types

    # ------------------------------------------------------------------------------------------------- references

    def _target(self, key: tuple[str, str], place: str) -> _Type:
        """The type of a schema that can be referred to: a whole document, or one of its ``$defs``."""
        if key in self.built:
            return self.built[key]
        if key in self.pending:
            name = self.pending[key]
            if not name:
                raise ValueError(
                    f"{place}: a type that contains itself must be an object with properties; put the part that "
                    "repeats into one"
                )
            return _Type(typing.ForwardRef(name), depth=0, hashable=False)
        document, definition = key
        schema = self.documents[document]
        if definition:
            schema = _definitions(schema)[definition]
            place = f"types[{document!r}].$defs[{definition!r}]"
        self.pending[key] = ""
        before = self.patterns.used
        found = self._type(schema, place, document, definition or document, key)
        self.built[key] = replace(found, patterns=0 if _is_model(found) else self.patterns.used - before)
        del self.pending[key]
        return found

    def _reference(self, schema: dict[str, Any], place: str, document: str) -> _Type:
        reference = schema["$ref"]
        if extra := sorted(schema.keys() & {*_BOUNDS, "anyOf", "oneOf"}):
            raise ValueError(f"{place}: {extra[0]!r} beside $ref; put it into the schema that is referred to")
        key = self._resolve(reference, document)
        if key is None:
            known = [f"#/$defs/{name}" for name in _definitions(self.documents[document])] + list(self.documents)
            raise ValueError(f"{place}: $ref {_short(reference)} is unknown; known are {', '.join(known[:20])}")
        again = key in self.built
        found = self._target(key, place)
        self._spend(found.weight, place)
        if again:
            self.patterns.spend(found.patterns, place)
        return found

    def _resolve(self, reference: Any, document: str) -> tuple[str, str] | None:
        if not isinstance(reference, str):
            return None
        if reference == "#":
            return document, ""
        for prefix in ("#/$defs/", "#/definitions/", ""):
            if reference.startswith(prefix):
                name = urllib.parse.unquote(reference[len(prefix) :]).replace("~1", "/").replace("~0", "~")
                if prefix and name in _definitions(self.documents[document]):
                    return document, name
                return (name, "") if name in self.documents else None
        return None

    # ------------------------------------------------------------------------------------------------------ types

    def _spend(self, weight: int, place: str) -> None:
        self.spent += weight
        if self.spent > MAX_TYPES:
            raise ValueError(f"{place}: the schemas stand for more than {MAX_TYPES:,} types; name fewer properties")

    def _type(
        self, schema: Any, place: str, document: str, name: str, key: tuple[str, str] | None = None
    ) -> _Type:
        """The type of one schema; ``key`` where it can be referred to."""
        self._spend(1, place)
        self.levels += 1
        try:
            if self.levels > _MAX_LEVELS:
                raise ValueError(f"{place}: types are nested deeper than {MAX_DEPTH} levels")
            found = self._plain(schema, place, document, name, key)
        finally:
            self.levels -= 1
        if found.depth > MAX_DEPTH:
            raise ValueError(f"{place}: types are nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, dict) and schema.get("nullable") is True:
            return replace(found, annotation=Optional[found.annotation])  # noqa: UP045
        return found

    def _plain(self, schema: Any, place: str, document: str, name: str, key: tuple[str, str] | None) -> _Type:
        if schema is True:
            return _Type(Any, hashable=False)
        if not isinstance(schema, dict):
            raise ValueError(f'{place}: a schema is a dict such as {{"type": "string"}}, not {_short(schema)}')
        if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
            (only,) = schema["allOf"]
            rest = {word: value for word, value in schema.items() if word != "allOf"}
            schema = {**rest, **only} if isinstance(only, dict) else rest
        if wrong := sorted(schema.keys() & _UNSUPPORTED):
            raise ValueError(f"{place}: {wrong[0]!r} is not supported; write one schema of type, properties, items, "
                             "enum, anyOf and $ref")
        if "$ref" in schema:
            return self._reference(schema, place, document)
        if "enum" in schema or "const" in schema:
            annotation, weight = fields.choice(schema, place)
            self._spend(weight, place)
            return _Type(annotation, weight)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._union(schema, word, place, document, name)
        kinds = self._kinds(schema, place)
        if not kinds:
            return _Type(Any, hashable=False)
        if len(kinds) > 1:
            parts = [
                self._type({**_relevant(schema, kind), "type": kind}, place, document, name) for kind in kinds
            ]
            return _union_of(parts)
        (kind,) = kinds
        if wrong := sorted(schema.keys() & (_BOUNDS - _KEYWORDS.get(kind, frozenset()))):
            raise ValueError(f"{place}: {wrong[0]!r} does not go with type {kind!r}")
        if kind == "object":
            return self._object(schema, place, document, name, key)
        if kind == "array":
            return self._array(schema, place, document, name)
        return _Type(self._scalar(kind, schema, place))

    def _kinds(self, schema: dict[str, Any], place: str) -> list[str]:
        given = schema.get("type")
        if given is None:
            # What its keywords speak of; nothing at all means anything.
            order = ("object", "array", "string", "number")
            return [kind for kind in order if schema.keys() & _KEYWORDS[kind]][:1]
        kinds = given if isinstance(given, list) else [given]
        for kind in kinds:
            if not isinstance(kind, str) or kind not in _TYPES:
                meant = _MEANT.get(kind.lower()) if isinstance(kind, str) else None
                hint = f'write "type": "{meant}"' if meant else f"the types are {', '.join(_TYPES)}"
                raise ValueError(f"{place}: unknown type {_short(kind)}; {hint}")
        if not kinds:
            raise ValueError(f"{place}: an empty list of types; the types are {', '.join(_TYPES)}")
        return list(dict.fromkeys(kinds))

    def _union(self, schema: dict[str, Any], word: str, place: str, document: str, name: str) -> _Type:
        choices = schema[word]
        if extra := sorted(schema.keys() & {*_BOUNDS, "anyOf", "oneOf"} - {word}):
            raise ValueError(f"{place}: {extra[0]!r} beside {word}; put it into each of its schemas")
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"{place}: {word} is a list of schemas")
        if fields.is_decimal(choices):
            return _Type(fields.decimal(choices[0], place))
        parts = [self._type(part, f"{place}.{word}[{n}]", document, f"{name}{n + 1}") for n, part in enumerate(choices)]
        union = _union_of(parts)
        discriminator = schema.get("discriminator")
        tag = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        if len(parts) > 1 and isinstance(tag, str) and all(self._tagged(part, tag, document) for part in choices):
            tagged: Any = union.annotation
            tagged = Annotated[tagged, pydantic.Field(discriminator=fields.attribute(tag))]
            return _Type(tagged, union.weight, union.depth, False)
        return union

    def _tagged(self, schema: Any, tag: str, document: str) -> bool:
        """True if ``schema`` is an object of which ``tag`` is one of some constants."""
        for _ in range(MAX_DEPTH):
            key = self._resolve(schema.get("$ref"), document) if isinstance(schema, dict) else None
            if key is None:
                break
            document, definition = key
            schema = self.documents[document]
            schema = _definitions(schema)[definition] if definition else schema
        properties = schema.get("properties") if isinstance(schema, dict) else None
        value = properties.get(tag) if isinstance(properties, dict) else None
        return isinstance(value, dict) and ("const" in value or "enum" in value)

    def _array(self, schema: dict[str, Any], place: str, document: str, name: str) -> _Type:
        low, high = (fields.count(schema, word, place) for word in ("minItems", "maxItems"))
        items, prefix = schema.get("items", True), schema.get("prefixItems")
        if isinstance(items, list):
            prefix, items = items, False
        if prefix is not None:
            if not isinstance(prefix, list) or not prefix:
                raise ValueError(f"{place}: prefixItems is a list of schemas")
            fixed = items is False or "items" not in schema
            if not fixed or {low, high} - {None, len(prefix)}:
                raise ValueError(f"{place}: prefixItems gives every item of an array of fixed length; leave out items, "
                                 "minItems and maxItems")
            place += ".prefixItems"
            parts = [self._type(p, f"{place}[{n}]", document, f"{name}{n + 1}") for n, p in enumerate(prefix)]
            kinds = tuple(part.annotation for part in parts)
            return replace(_union_of(parts), annotation=tuple[kinds])  # type: ignore[valid-type]
        if items is False:
            items, high = True, 0
        item = self._type(items, f"{place}.items", document, fields.singular(name))
        unique = schema.get("uniqueItems") is True
        holder: Any = set if unique and item.hashable else list
        annotation: Any = holder[item.annotation]
        if unique and not item.hashable:
            annotation = Annotated[annotation, pydantic.AfterValidator(fields.unique)]
        annotation = fields.limited(annotation, place, min_length=low, max_length=high)
        return _Type(annotation, item.weight + 1, item.depth + 1, False)

    def _object(
        self, schema: dict[str, Any], place: str, document: str, name: str, key: tuple[str, str] | None
    ) -> _Type:
        properties, extra = schema.get("properties"), schema.get("additionalProperties", None)
        if properties is None and not schema.get("required") and extra is not False:
            return self._mapping(schema, place, document, name)
        if properties is None:
            properties = {}
        if not isinstance(properties, dict):
            raise ValueError(f"{place}: properties is a dict of name to schema")
        if wrong := sorted(schema.keys() & {"patternProperties", "propertyNames", "minProperties", "maxProperties"}):
            raise ValueError(f"{place}: {wrong[0]!r} does not go with properties; leave it out")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
            raise ValueError(f"{place}: required is a list of property names")
        if missing := [one for one in required if one not in properties]:
            raise ValueError(f"{place}: {_short(missing[0])} is required and not in properties; describe it there")
        forward = f"_RlmType{len(self.namespace)}"
        self.namespace[forward] = None
        if key is not None:
            self.pending[key] = forward
        draft = fields.Draft(fields.class_name(name), schema.get("description"), place, nullable="title" not in schema)
        depth = 0
        for title, part in properties.items():
            found = self._type(part, f"{place}.{title}", document, fields.class_name(title))
            depth = max(depth, found.depth)
            draft.add(title, found.annotation, part, title in required)
        if isinstance(extra, dict):
            found = self._type(extra, f"{place}.additionalProperties", document, f"{name}Extra")
            depth = max(depth, found.depth)
            draft.extra = found.annotation
        elif extra is not None:
            draft.extra = bool(extra)
        self.namespace[forward] = draft.create()
        self.models.append(draft)
        return _Type(self.namespace[forward], 1, depth + 1, False)

    def _mapping(self, schema: dict[str, Any], place: str, document: str, name: str) -> _Type:
        extra, patterns = schema.get("additionalProperties", True), schema.get("patternProperties")
        keys: Any = str
        if patterns is not None:
            if not isinstance(patterns, dict) or len(patterns) != 1 or "additionalProperties" in schema:
                raise ValueError(f"{place}: patternProperties is a dict of one pattern, without additionalProperties")
            ((pattern, extra),) = patterns.items()
            keys = self._scalar("string", {"pattern": pattern}, f"{place}.patternProperties")
        if "propertyNames" in schema:
            named = schema["propertyNames"]
            named = {"type": "string", **named} if isinstance(named, dict) and "$ref" not in named else named
            keys = self._type(named, f"{place}.propertyNames", document, f"{name}Name").annotation
        value = self._type(extra, f"{place}.additionalProperties", document, fields.singular(name))
        low, high = (fields.count(schema, word, place) for word in ("minProperties", "maxProperties"))
        holder: Any = dict
        annotation = holder[keys, value.annotation]
        annotation = fields.limited(annotation, place, min_length=low, max_length=high)
        return _Type(annotation, value.weight + 1, value.depth + 1, False)

    def _scalar(self, kind: str, schema: dict[str, Any], place: str) -> Any:
        if kind == "null":
            return None
        if kind == "boolean":
            return bool
        if kind == "string":
            given = schema.get("format")
            base = _FORMATS.get(given, str) if isinstance(given, str) else str
            low, high = (fields.count(schema, word, place) for word in ("minLength", "maxLength"))
            words = {"minLength", "maxLength", "pattern"} if base not in (str, bytes, pydantic.AnyUrl) else {"pattern"}
            if base is not str and (wrong := sorted(schema.keys() & words)):
                raise ValueError(f"{place}: {wrong[0]!r} does not go with format {given!r}; leave it out")
            if base is pydantic.AnyUrl:
                return Annotated[base, pydantic.UrlConstraints(max_length=high)] if high else base
            pattern = self.patterns.checked(schema.get("pattern"), place)
            return fields.limited(base, place, min_length=low, max_length=high, pattern=pattern)
        bounds = {word: fields.number(schema, word, place) for word in _KEYWORDS["number"]}
        return fields.limited(
            int if kind == "integer" else float,
            place,
            ge=bounds["minimum"],
            le=bounds["maximum"],
            gt=bounds["exclusiveMinimum"],
            lt=bounds["exclusiveMaximum"],
            multiple_of=bounds["multipleOf"],
        )


def _is_model(found: _Type) -> bool:
    return isinstance(found.annotation, type) and issubclass(found.annotation, SchemaModel)


def _union_of(parts: list[_Type]) -> _Type:
    union: Any = Union
    annotation = union[tuple(part.annotation for part in parts)]
    weight = sum(part.weight for part in parts)
    return _Type(annotation, weight, max(part.depth for part in parts) + 1, all(part.hashable for part in parts))


def _definitions(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in ("definitions", "$defs"):
        part = schema.get(word) if isinstance(schema, dict) else None
        if isinstance(part, dict):
            found.update(part)
    return found


def _relevant(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    return {word: value for word, value in schema.items() if word in _KEYWORDS.get(kind, frozenset())}


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= 60 else text[:59] + "…"
