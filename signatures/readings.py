"""Reading typed outputs out of a reply in whatever form it has them, and saying what is wrong where that fails.

Looked for are DSPy's field markers, XML tags, a JSON object, lines that begin with an output's name, and where there is
one output alone the reply itself as its value.
"""

from __future__ import annotations

import ast
import datetime
import enum
import json
import re
import types
import typing
import weakref
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import dspy
import pydantic
from pydantic.fields import FieldInfo

__all__ = ["Output", "Reading", "kind_of", "outputs_of", "read", "too_deep"]

MAX_NESTING = 200
"""Levels of brackets that a reply may have: parsers recurse."""
MAX_OPEN = 20
"""Brackets that a reply may leave open, as one does that has been cut off."""
_LONGEST = 2_000_000
"""Characters of a reply that is looked through for other forms."""
_STARTS = 20
"""Opening braces at which a JSON object is looked for."""
_SHOWN = 80
_OPTIONS = 12

_BRACKET = re.compile(r"[\[\]{}]")
_MARKER = re.compile(r"\[\[ ?## ?(\w+) ?## ?\]\]")
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCE = re.compile(r"\A```\w*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_LABEL = re.compile(
    r"[\s>#*\-]{0,8}(?:\d{1,2}[.)]\s{0,4})?[*_`\"']{0,3}([\w ]{1,60}?)[*_`\"']{0,3}\s{0,2}[:=][*_`]{0,2}"
)
_BULLET = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])\s+(.*\S)\s*")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,_]*(?:\.\d+)?(?![\w])")
_NULLS = frozenset({"null", "None", "NULL", "none"})


@dataclass(frozen=True)
class Output:
    """One output field.

    Attributes:
        name: Its name.
        info: As DSPy has it.
        annotation: Its type, with bounds (``Annotated``).
        optional: It may be left out: it has a default, or allows None.
    """

    name: str
    info: FieldInfo
    annotation: Any
    optional: bool

    def default(self) -> Any:
        """The value of an output that was left out."""
        return None if self.info.is_required() else self.info.get_default(call_default_factory=True)

    def checked(self, value: Any) -> Any:
        """``value``, which has the type of the field, within the field's bounds.

        Raises:
            pydantic.ValidationError: It is not.
        """
        if isinstance(value, str) and value.strip() in _NULLS and self.optional and _allows_none(self.annotation):
            return None
        return _adapter(self.annotation).validate_python(value) if self.info.metadata else value


@dataclass
class Reading:
    """What a reply gives: ``values`` by output, and a sentence for each output that is missing or wrong."""

    values: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


_outputs: weakref.WeakKeyDictionary[Any, dict[str, Output]] = weakref.WeakKeyDictionary()


def outputs_of(signature: type[dspy.Signature]) -> dict[str, Output]:
    """The outputs of ``signature``, collected once for each class."""
    found = _outputs.get(signature)
    if found is None:
        found = {}
        for name, info in signature.output_fields.items():
            annotation = info.rebuild_annotation() if info.metadata else info.annotation
            found[name] = Output(name, info, annotation, not info.is_required() or _allows_none(annotation))
        _outputs[signature] = found
    return found


def read(signature: type[dspy.Signature], reply: str) -> Reading:
    """The outputs of ``signature`` that are in ``reply``."""
    outputs, reading = outputs_of(signature), Reading()
    text = _THOUGHT.sub("", reply[:_LONGEST]).strip()
    raw = _raw(text, list(outputs))
    if text == "{}" and all(output.optional for output in outputs.values()):
        reading.values.update({name: output.default() for name, output in outputs.items()})
        return reading
    if not raw and len(outputs) == 1:
        ((name, output),) = outputs.items()
        try:
            reading.values[name] = _whole(text, output)
        except _ERRORS as error:
            reading.problems.append(_unfit(output, text, error))
        return reading
    if not raw:
        names = ", ".join(f"`{name}`" for name in outputs)
        reading.problems.append(f"none of the outputs {names} is in the reply")
        return reading
    for name, output in outputs.items():
        if name not in raw:
            if output.optional:
                reading.values[name] = output.default()
            else:
                reading.problems.append(f"there is no value for `{name}` ({_said(output.annotation)})")
            continue
        try:
            reading.values[name] = _found(raw[name], output.annotation)
        except _ERRORS as error:
            reading.problems.append(_unfit(output, raw[name], error))
    return reading


_ERRORS = (ValueError, TypeError, RecursionError, SyntaxError, MemoryError)


# -------------------------------------------------------------------------------------------------------------- forms


def too_deep(text: str) -> bool:
    """Whether parsing ``text`` as JSON could take very long or exhaust the stack; linear in its length.

    That is, more than `MAX_NESTING` brackets are open at once, or more than `MAX_OPEN` at the end.
    """
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth = depth + 1 if bracket[0] in "[{" else max(depth - 1, 0)
        if depth > MAX_NESTING:
            return True
    return depth > MAX_OPEN


def _raw(text: str, names: list[str]) -> dict[str, Any]:
    """Text or JSON value of each output that is found, in the form that has the most of them."""
    best: dict[str, Any] = {}
    for form in (_marked, _tagged, _object, _labelled):
        found = form(text, names)
        if len(found) > len(best):
            best = found
        if len(best) == len(names):
            break
    return best


def _marked(text: str, names: list[str]) -> dict[str, Any]:
    markers = list(_MARKER.finditer(text))
    found: dict[str, Any] = {}
    for n, marker in enumerate(markers):
        end = markers[n + 1].start() if n + 1 < len(markers) else len(text)
        if marker[1] in names:
            found.setdefault(marker[1], text[marker.end() : end].strip())
    return found


def _tagged(text: str, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        start = text.find(f"<{name}>")
        end = text.find(f"</{name}>", start)
        if 0 <= start < end:
            found[name] = text[start + len(name) + 2 : end].strip()
    return found


def _object(text: str, names: list[str]) -> dict[str, Any]:
    """The last object that has any of the names: models think first and answer then."""
    found: dict[str, Any] = {}
    decoder, end = json.JSONDecoder(strict=False), 0
    for start in [place.start() for place in re.finditer(r"\{", text)][:_STARTS]:
        if start < end:
            continue
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            part = {name: value[name] for name in names if name in value}
            found = part if len(part) >= len(found) else found
    return found


def _labelled(text: str, names: list[str]) -> dict[str, Any]:
    """Lines that begin with an output's name and a colon; what follows belongs to it until the next one."""
    known = {_plain(name): name for name in names}
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        label = _LABEL.match(line[:120])
        name = known.get(_plain(label[1])) if label else None
        if name is not None and label is not None:
            current = found.setdefault(name, [])
            current.append(line[label.end() :])
        elif current is not None:
            current.append(line)
    return {name: "\n".join(lines).strip() for name, lines in found.items()}


def _plain(name: str) -> str:
    return name.replace("_", " ").strip().casefold()


def _whole(text: str, output: Output) -> Any:
    """The reply as the value of the one output.

    Raises:
        ValueError: It is none, or pydantic's kind of one.
    """
    if output.annotation is str:
        return _MARKER.sub("", text).strip()
    inner = _FENCE.sub(r"\1", text).strip()
    try:
        return _found(inner, output.annotation)
    except _ERRORS as error:
        for opening, closing in ("{}", "[]"):
            start, end = inner.find(opening), inner.rfind(closing) + 1
            if 0 <= start < end:
                try:
                    return coerce(inner[start:end], output.annotation)
                except _ERRORS:
                    continue
        raise error from None


def _found(value: Any, annotation: Any) -> Any:
    """`coerce`, and where that fails of text: the only number in it, the items of a list with bullets.

    Raises:
        ValueError: It is of another type.
    """
    try:
        return coerce(value, annotation)
    except _ERRORS:
        if not isinstance(value, str):
            raise
        numbers = {number.replace(",", "").replace("_", "") for number in _NUMBER.findall(value)}
        if len(numbers) == 1 and {int, float} & set(_parts(annotation)):
            return coerce(numbers.pop(), annotation)
        items = [_BULLET.fullmatch(line) for line in value.splitlines() if line.strip()]
        if items and all(items) and get_origin(annotation) in (list, set):
            return coerce([item[1] for item in items if item], annotation)
        raise


# ------------------------------------------------------------------------------------------------------------- values


def coerce(value: Any, annotation: Any) -> Any:
    """``value``, text of a reply or a value of JSON, in the type ``annotation``.

    Text counts as the JSON or the Python literal that it is, else as itself; a choice also in other case, in quotes, or
    with a full stop.

    Raises:
        pydantic.ValidationError: It has another type; a ValueError.
    """
    if annotation is str:
        if value is None:
            raise ValueError("null is no text")
        return value if isinstance(value, str) else _as_text(value)
    adapter = _adapter(annotation)
    if not isinstance(value, str):
        try:
            return adapter.validate_python(value)
        except pydantic.ValidationError:
            if _takes_text(annotation) and not isinstance(value, (dict, list)):
                return adapter.validate_python(str(value))
            raise
    text = _FENCE.sub(r"\1", value.strip()).strip()
    if _takes_text(annotation):
        # As DSPy has it: where text is possible, what looks like a number is text.
        return None if text in _NULLS and _allows_none(annotation) else adapter.validate_python(text)
    first: pydantic.ValidationError | None = None
    for candidate in _candidates(text, annotation):
        try:
            return adapter.validate_python(candidate)
        except pydantic.ValidationError as error:
            first = first or error
    assert first is not None
    raise first


def _candidates(text: str, annotation: Any) -> typing.Iterator[Any]:
    """What ``text`` may mean, best first; the first one is what an error speaks of."""
    for parse in (json.loads, ast.literal_eval):
        try:
            yield parse(text)
            break
        except _ERRORS:
            continue
    yield text
    bare = text.strip(" \t\n\"'`*.")
    if bare != text:
        yield bare
    for option in _choices(annotation):
        if str(option).casefold() == bare.casefold():
            yield option
    for kind in _parts(annotation):
        if isinstance(kind, enum.EnumMeta):
            members: list[Any] = list(kind)
            yield from (member for member in members if member.name.casefold() == bare.casefold())


def _as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def _adapter(annotation: Any) -> pydantic.TypeAdapter[Any]:
    try:
        return pydantic.TypeAdapter(annotation)
    except pydantic.PydanticSchemaGenerationError:
        return pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(arbitrary_types_allowed=True))


def _parts(annotation: Any) -> list[Any]:
    """The members of a union, a type alone as one."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [part for member in get_args(annotation) for part in _parts(member)]
    return [annotation]


def _choices(annotation: Any) -> list[Any]:
    found: list[Any] = []
    for part in _parts(annotation):
        if get_origin(part) is Literal:
            found += get_args(part)
        elif isinstance(part, enum.EnumMeta):
            members: list[Any] = list(part)
            found += [member.value for member in members]
    return found


def _allows_none(annotation: Any) -> bool:
    return any(part is None or part is type(None) for part in _parts(annotation))


def _takes_text(annotation: Any) -> bool:
    return str in _parts(annotation)


# -------------------------------------------------------------------------------------------------------------- words


def kind_of(annotation: Any) -> str:
    """A type in plain words, ``""`` for one that words do not tell: a model, a list of lists."""
    parts = _parts(annotation)
    if len(parts) > 1:
        kinds = [kind_of(part) for part in parts if part is not type(None)]
        return " or ".join([*kinds, "null"] if _allows_none(annotation) else kinds) if all(kinds) else ""
    (part,) = parts
    if options := _choices(part):
        more = [f"{len(options) - _OPTIONS} more"] if len(options) > _OPTIONS else []
        return "one of " + ", ".join([*map(repr, options[:_OPTIONS]), *more])
    if get_origin(part) in (list, set, tuple):
        inner = [kind for kind in get_args(part) if kind is not ...]
        item = _PLURALS.get(inner[0]) if len(inner) == 1 or get_origin(part) is not tuple else None
        return f"a JSON list of {item}" if item else ""
    return _KINDS.get(part, "") if isinstance(part, typing.Hashable) else ""


_KINDS: dict[Any, str] = {
    **{str: "a text", int: "a whole number", float: "a number", bool: "True or False", type(None): "null"},
    **{datetime.date: "a date like 2024-12-31", datetime.datetime: "a time like 2024-12-31T23:59:59"},
}
_PLURALS: dict[Any, str] = {str: "texts", int: "whole numbers", float: "numbers", bool: "true and false"}


def _said(annotation: Any) -> str:
    plain = annotation if isinstance(annotation, type) and not get_args(annotation) else None
    if plain is not None and issubclass(plain, pydantic.BaseModel):
        names = [info.alias or name for name, info in plain.model_fields.items()]
        return f"a JSON object with {', '.join(names[:_OPTIONS]) or 'no fields'}"
    name = re.sub(r"\b(?:\w+\.)+", "", str(annotation)) if plain is None else plain.__name__
    return kind_of(annotation) or name[:200]


def _unfit(output: Output, value: Any, error: BaseException) -> str:
    """One output whose value has another type."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    shown = repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…") if text else "nothing"
    why = ""
    if isinstance(error, pydantic.ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        if place:
            why = f" ({place}: {first['msg']})"
        elif output.info.metadata:
            why = f" ({first['msg']})"
    return f"`{output.name}` has to be {_said(output.annotation)}, and {shown} came{why}"
