"""JSON Schema to types: what pydantic writes comes back, what people write works, what is hostile is refused."""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import time
import uuid
from typing import Annotated, Any, Literal, get_args, get_origin

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy import schemas

NAME_AND_AGE = {"name": {"type": "string"}, "age": {"type": "integer"}}
OBJECT = {"type": "object", "properties": NAME_AND_AGE, "required": ["name"]}
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
PAIR = [{"type": "string"}, {"type": "integer"}]


def made(schema: Any, **more: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(schemas.build({"T": schema, **more})["T"])


def takes(adapter: pydantic.TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except pydantic.ValidationError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------- round trip


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    value: int


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    value: int


class Node(pydantic.BaseModel):
    value: int
    children: list[Node] = []
    other: Other | None = None


class Other(pydantic.BaseModel):
    nodes: dict[str, Node]


LEAVES: list[Any] = [
    *(str, int, float, bool, datetime.date, datetime.datetime, datetime.time, datetime.timedelta, uuid.UUID, bytes),
    *(Colour, Cat, Dog, Strict, Loose, Node, ipaddress.IPv4Address, Any, Literal["a", 1, None, True]),
    Annotated[int, pydantic.Field(ge=0, lt=10)],
    Annotated[float, pydantic.Field(gt=0.5, le=3, multiple_of=0.5)],
    Annotated[str, pydantic.Field(min_length=1, max_length=4)],
    Annotated[str, pydantic.Field(pattern="^[a-c]+$")],
    Annotated[Cat | Dog, pydantic.Field(discriminator="kind")],
]
HASHABLE = [str, int, datetime.date, Literal["a", "b"]]


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda t: list[t]),
        inner.map(lambda t: dict[str, t]),
        inner.map(lambda t: Annotated[list[t], pydantic.Field(min_length=1, max_length=2)]),
        st.tuples(inner, inner).map(lambda ts: tuple[ts]),
        st.tuples(inner, inner).map(lambda ts: ts[0] | ts[1] if ts[0] is not Any and ts[1] is not Any else Any),
        inner.map(lambda t: t | None if t is not Any else Any),
        st.sampled_from(HASHABLE).map(lambda t: set[t]),
    )


types = st.recursive(st.sampled_from(LEAVES), grown, max_leaves=4)
names = st.sampled_from(["name", "class", "first-name", "schema", "json", "_x", "model_dump", "n 1", "Zahl", "1st"])
scalars = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 12), st.sampled_from([0.5, 1.5, 3.0, -1.0])),
    st.sampled_from(["a", "b", "abc", "zz", "", "red", "cat", "7", "10:00", "P1D", "true"]),
    st.sampled_from(["2024-02-29", "2024-02-29T10:00:00", "127.0.0.1", "not this one"]),
    st.just("12345678-1234-5678-1234-567812345678"),
)
objects = st.sampled_from(
    [
        *({"kind": "cat"}, {"kind": "dog", "name": "x"}, {"name": "x"}, {"kind": "cow"}, {"value": 1}, {"value": "x"}),
        *({"value": 1, "more": 2}, {"value": 1, "more": "x"}, {"value": 1, "children": [{"value": 2}]}, {}),
        {"value": 1, "children": [{"value": 2, "children": [{"value": "x"}]}]},
        {"value": 1, "other": {"nodes": {"a": {"value": 3}}}},
    ]
)
values = st.recursive(
    scalars | objects,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)


def outcome(adapter: pydantic.TypeAdapter[Any], value: Any) -> Any:
    try:
        found = adapter.validate_python(value)
    except pydantic.ValidationError:
        return "refused"
    return json.dumps(adapter.dump_python(found, mode="json", by_alias=True, warnings=False), sort_keys=True)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fields=st.dictionaries(names, st.tuples(types, st.booleans()), min_size=1, max_size=3), data=st.data())
def test_a_models_own_schema_comes_back_with_the_same_validation(fields: dict[str, Any], data: st.DataObject) -> None:
    made_of: dict[str, Any] = {
        f"field{n}": (kind if needed else kind | None if kind is not Any else Any,
                      pydantic.Field(alias=alias) if needed else pydantic.Field(None, alias=alias))
        for n, (alias, (kind, needed)) in enumerate(fields.items())
    }
    original = pydantic.create_model("Original", **made_of)
    back = made(original.model_json_schema())
    for _ in range(5):
        value = {name: data.draw(values) for name in fields if data.draw(st.integers(0, 9))}
        assert outcome(back, value) == outcome(pydantic.TypeAdapter(original), value), value


@settings(max_examples=100, deadline=None)
@given(kind=types, value=values)
def test_any_types_schema_comes_back_with_the_same_validation(kind: Any, value: Any) -> None:
    original = pydantic.TypeAdapter(kind)
    assert outcome(made(original.json_schema()), value) == outcome(original, value)


def test_defaults_come_back_in_their_types() -> None:
    class Defaults(pydantic.BaseModel):
        day: datetime.date = datetime.date(2024, 2, 29)
        tags: set[str] = {"x"}
        cat: Cat = Cat(kind="cat", lives=3)
        many: list[Cat] = [Cat(kind="cat")]
        note: str | None = None
        count: int = 3

    found = made(Defaults.model_json_schema()).validate_python({})
    assert (found.day, found.tags, found.note, found.count) == (datetime.date(2024, 2, 29), {"x"}, None, 3)
    assert (found.cat.lives, found.many[0].lives) == (3, 9)
    found.many.append("changed")
    assert len(made(Defaults.model_json_schema()).validate_python({}).many) == 1


def test_a_recursive_model_is_a_type_like_any_other() -> None:
    for adapter in (made(Node.model_json_schema()), made({"type": "array", "items": {"$ref": "Node"}},
                                                         Node=Node.model_json_schema())):
        value: Any = {"value": 1, "children": [{"value": 2, "other": {"nodes": {"a": {"value": 3}}}}]}
        deep: Any = {"value": 1, "children": [{"value": 2, "other": {"nodes": {"a": {"value": "x"}}}}]}
        listed = "items" in adapter.json_schema()
        assert takes(adapter, [value] if listed else value) and not takes(adapter, [deep] if listed else deep)
        assert adapter.json_schema()["$defs"]


def test_decimals_with_a_pattern_come_back_as_decimals() -> None:
    schema = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DECIMAL}]}
    adapter = made(schema)
    assert adapter.validate_python("1.10") == decimal.Decimal("1.10") and not takes(adapter, "x")
    assert not takes(adapter, -1)


# -------------------------------------------------------------------------------------------------- written by hand


def test_an_object_is_a_model_with_its_own_names_and_notes() -> None:
    model = schemas.build(
        {
            "Person": {
                "type": "object",
                "description": "Who it is about",
                "properties": {"class": {"type": "string", "description": "of ship"}, "first-name": {"type": "string"}},
                "required": ["class"],
            }
        }
    )["Person"]
    assert issubclass(model, schemas.SchemaModel) and model.__name__ == "Person"
    assert model.__doc__ == "Who it is about"
    person = model.model_validate({"class": "A", "first-name": "Ada"})
    assert (person.class_, person.first_name) == ("A", "Ada")
    assert model.model_validate({"class": "A"}).first_name is None
    assert model.model_json_schema()["properties"]["class"]["description"] == "of ship"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": ["integer", "null"], "minimum": 3}, [3, None], [2, "x"]),
        ({"type": "string", "nullable": True}, ["x", None], [1]),
        ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", 2]),
        ({"const": 5}, [5], [6]),
        ({"type": "array", "items": PAIR}, [["a", 1]], [["a"], [1, "a"], ["a", 1, 2]]),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, [["a"]], [[], ["a", "b"]]),
        ({"uniqueItems": True, "items": OBJECT}, [[{"name": "a"}, {"name": "b"}]], [[{"name": "a"}] * 2]),
        ({"type": "array", "maxItems": 1}, [[], ["x"]], [[1, 2], "x"]),
        ({"type": "object"}, [{}, {"a": [1]}], [[], 3]),
        ({"additionalProperties": {"type": "integer"}, "minProperties": 1}, [{"a": 1}], [{}, {"a": "x"}]),
        ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": 1}]),
        ({"type": "object", "propertyNames": {"enum": ["a"]}}, [{"a": 1}], [{"b": 1}]),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, [{"ab": 1}], [{"b": 1}, {"a": "x"}]),
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, [{"a": 1}], [{}, 3]),
        ({"allOf": [{"$ref": "#/$defs/A"}], "default": "x", "$defs": {"A": {"type": "string"}}}, ["a"], [1]),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, [1, True], ["x"]),
        ({"$ref": "#/definitions/A~1B", "definitions": {"A/B": {"type": "integer"}}}, [1], ["x"]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2024-02-30"]),
        ({"type": "string", "format": "email"}, ["anything"], [1]),
        ({"type": "string", "format": "uri", "maxLength": 20}, ["https://a.b/"], ["no", "https://" + "a" * 30]),
        ({"type": "string", "pattern": r"^\d{4}-\d{2}$"}, ["2024-02"], ["24-02"]),
        ({"type": "integer", "exclusiveMinimum": 0, "multipleOf": 2}, [2], [0, 3]),
        (True, [1, "x", None], []),
        ({}, [1, "x", None], []),
        ({"description": "whatever"}, [1, "x", None], []),
    ],
)
def test_what_people_write(schema: Any, good: list[Any], bad: list[Any]) -> None:
    adapter = made(schema)
    assert [value for value in good if not takes(adapter, value)] == []
    assert [value for value in bad if takes(adapter, value)] == []


def test_types_name_each_other_in_any_order() -> None:
    types = schemas.build(
        {
            "Team": {"type": "object", "properties": {"lead": {"$ref": "Person"}, "all": {"$ref": "#/$defs/People"}},
                     "$defs": {"People": {"type": "array", "items": {"$ref": "#/$defs/Person"}}}, "required": ["lead"]},
            "Person": OBJECT,
        }
    )
    team = types["Team"].model_validate({"lead": {"name": "a"}, "all": [{"name": "b"}]})
    assert isinstance(team.lead, types["Person"]) and isinstance(team.all[0], types["Person"])


def test_an_absent_property_is_none_and_may_be_null_unless_pydantic_wrote_the_schema() -> None:
    adapter = made(OBJECT)
    assert adapter.validate_python({"name": "a"}).age is None
    assert adapter.validate_python({"name": "a", "age": None}).age is None
    assert not takes(adapter, {"name": None}) and not takes(adapter, {"name": "a", "age": "x"})

    class Lists(pydantic.BaseModel):
        tags: list[str] = pydantic.Field(default_factory=list)

    adapter = made(Lists.model_json_schema())
    assert takes(adapter, {}) and not takes(adapter, {"tags": None})


def test_choices_are_literals() -> None:
    kind = schemas.build({"T": {"type": "string", "enum": ["b", "a"]}})["T"]
    assert get_origin(kind) is Literal and get_args(kind) == ("b", "a")


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "str"}, 'write "type": "string"'),
        ({"type": "date"}, '"format": "date"'),
        ({"type": "person"}, "the types are string, integer"),
        ({"type": []}, "empty list of types"),
        ({"type": 3}, "unknown type 3"),
        ({"type": "object", "properties": {"a": "string"}}, r"\.a: a schema is a dict"),
        ({"type": "object", "properties": ["a"]}, "properties is a dict"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}, "'b' is required"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"}, "required is a list"),
        ({"type": "object", "required": ["b"]}, "'b' is required"),
        ({"type": "string", "minimum": 3}, "'minimum' does not go with type 'string'"),
        ({"type": "integer", "minimum": "3"}, "minimum is a number"),
        ({"type": "integer", "minimum": 0.5}, "whole number"),
        ({"type": "integer", "multipleOf": 0}, "above 0"),
        ({"type": "number", "minimum": 10**400}, "out of range"),
        ({"type": "string", "maxLength": -1}, "whole number from 0"),
        ({"type": "string", "pattern": 3}, "pattern is a text"),
        ({"type": "string", "pattern": "["}, "regex parse error|unclosed"),
        ({"type": "string", "pattern": "a", "format": "date"}, "'pattern' does not go with format 'date'"),
        ({"enum": []}, "enum is a list"),
        ({"enum": "ab"}, "enum is a list"),
        ({"enum": [{"a": 1}]}, "use anyOf"),
        ({"anyOf": []}, "anyOf is a list"),
        ({"anyOf": [{"type": "string"}], "minimum": 3}, "'minimum' beside anyOf"),
        ({"not": {"type": "string"}}, "'not' is not supported"),
        ({"allOf": [{"type": "string"}, {"minLength": 3}]}, "'allOf' is not supported"),
        ({"$ref": "#/$defs/B", "$defs": {"A": {}}}, "known are #/\\$defs/A, T"),
        ({"$ref": 3}, "is unknown"),
        ({"$ref": "#/$defs/A", "minLength": 3, "$defs": {"A": {"type": "string"}}}, "beside \\$ref"),
        ({"$ref": "#"}, "contains itself must be an object"),
        ({"type": "array", "items": {"$ref": "#"}}, "contains itself must be an object"),
        ({"type": "object", "additionalProperties": {"$ref": "#"}}, "contains itself must be an object"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}, "contains itself"),
        ({"type": "array", "prefixItems": [{}], "items": {"type": "string"}}, "prefixItems gives every item"),
        ({"properties": {"a": {"type": "string"}}, "minProperties": 1}, "does not go with properties"),
        ({"type": "object", "properties": {"a": {"type": "array", "default": "x"}}}, "default does not fit"),
        ({"type": "string", "default": float("nan")}, "finite"),
        ({"type": "string", "examples": [{1, 2}]}, "holds a set"),
        ({"enum": ["a"], 1: 2}, "keys of a JSON Schema are texts"),
        (False, "a schema is a dict"),
        ("string", "a schema is a dict"),
    ],
)
def test_errors_say_where_and_what_to_write(schema: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        schemas.build({"T": schema})
    assert type(caught.value) is ValueError and str(caught.value).startswith("types") and len(str(caught.value)) < 600


# ----------------------------------------------------------------------------------------------------------- hostile


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def chained(count: int, fan: int) -> dict[str, Any]:
    """Definitions each of which uses the next one ``fan`` times: the type of the first has ``fan ** count`` parts."""
    definitions: dict[str, Any] = {
        f"D{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/D{n + 1}"}] * fan} for n in range(count)
    }
    definitions[f"D{count}"] = {"type": "string"}
    return {"$ref": "#/$defs/D0", "$defs": definitions}


def objects_in_a_chain(count: int) -> dict[str, Any]:
    definitions = {
        f"D{n}": {"type": "object", "properties": {"next": {"$ref": f"#/$defs/D{n + 1}"}}} for n in range(count)
    }
    return {"$ref": "#/$defs/D0", "$defs": {**definitions, f"D{count}": OBJECT}}


def backwards(count: int) -> dict[str, Any]:
    """The same chain, so that every link has been built before the one that uses it."""
    chain = objects_in_a_chain(count)
    order = {f"p{n}": {"$ref": f"#/$defs/D{n}"} for n in range(count, -1, -1)}
    return {"type": "object", "properties": order, "$defs": chain["$defs"]}


def itself() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    return schema


PATTERN = {"type": "string", "pattern": r"\w{100}"}
HOSTILE: dict[str, Any] = {
    "nested": nested(5_000),
    "nested a little less": nested(60),
    "fan": chained(30, 2),
    "chain": chained(200, 1),
    "chain of objects": objects_in_a_chain(90),
    "the same backwards": backwards(40),
    "wide": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(4_000)}},
    "very wide": {"enum": [str(n) for n in range(200_000)]},
    "long": {"type": "string", "description": "x" * 10_000_000},
    "huge number": {"type": "integer", "minimum": 1 << 5_000_000},
    "itself": itself(),
    "repeats": {"type": "string", "pattern": "(a{1000}){1000}"},
    "nested repeats": {"type": "string", "pattern": "((((a{9}){9}){9}){9}){9}"},
    "huge count": {"type": "string", "pattern": "a{" + "9" * 100 + "}"},
    "long pattern": {"type": "string", "pattern": "a?" * 5_000},
    "looking around": {"type": "string", "pattern": "(?=(a+)+$)b"},
    "back-reference": {"type": "string", "pattern": r"(a*)*\1$"},
    "many patterns": {"type": "array", "prefixItems": [PATTERN] * 20},
    "one pattern many times": {"type": "array", "prefixItems": [{"$ref": "#/$defs/P"}] * 20, "$defs": {"P": PATTERN}},
    "enum many times": {"type": "array", "prefixItems": [{"$ref": "#/$defs/E"}] * 500,
                        "$defs": {"E": {"enum": [str(n) for n in range(500)]}}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_at_once(name: str) -> None:
    started = time.monotonic()
    with pytest.raises(ValueError, match="types"):
        schemas.build({"T": HOSTILE[name]})
    assert time.monotonic() - started < 10


def test_patterns_take_linear_time() -> None:
    adapter = made({"type": "string", "pattern": "^(a+)+$"})
    started = time.monotonic()
    assert not takes(adapter, "a" * 50_000 + "!")
    assert time.monotonic() - started < 10


def test_the_largest_that_is_taken_is_built_and_used_in_moments() -> None:
    part = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}}
    schema = {"type": "object", "properties": {f"p{n}": part for n in range(150)}}
    started = time.monotonic()
    assert takes(made(schema), {"p7": {"a": "x", "b": None}})
    assert takes(made(backwards(15)), {}) and takes(made(nested(20)), [])
    assert time.monotonic() - started < 20


NAMES = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=10,
)
WORDS = st.sampled_from(
    "type properties items prefixItems enum const anyOf oneOf allOf $ref format pattern title description default "
    "required additionalProperties patternProperties propertyNames minimum maxLength minItems uniqueItems "
    "multipleOf $defs nullable discriminator".split()
)
WORDED = st.recursive(
    JSON
    | st.sampled_from(["string", "integer", "object", "array", "#", "#/$defs/a", "date", "^a"])
    | st.sampled_from([["a"], {"a": {"type": "string"}}, [{"type": "string"}], {"type": "object"}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.just("a"), inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=st.dictionaries(WORDS, WORDED, max_size=6))
def test_whatever_the_schema_it_is_a_type_or_a_value_error(schema: dict[str, Any]) -> None:
    try:
        kind = schemas.build({"T": schema})["T"]
    except ValueError as error:
        assert str(error).startswith("types")
    else:
        pydantic.TypeAdapter(kind)


@settings(max_examples=100, deadline=None)
@given(titles=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True))
def test_properties_may_have_any_names(titles: list[str]) -> None:
    properties = {title: {"type": "integer"} for title in titles}
    adapter = made({"type": "object", "properties": properties, "required": titles})
    value = {title: n for n, title in enumerate(titles)}
    assert adapter.dump_python(adapter.validate_python(value), by_alias=True) == value
    assert not takes(adapter, dict.fromkeys(titles, "x"))
