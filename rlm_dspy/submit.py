"""Checking what ``SUBMIT(...)`` was given against the typed output fields, on the host."""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import dspy
import pydantic
from pydantic_core import PydanticUndefined

from rlm_dspy.environments.base import Submission
from rlm_dspy.environments.wire import json_cost, too_deep
from rlm_dspy.inputs import short_repr
from rlm_dspy.render import one_line
from rlm_dspy.signatures.contract import OutputInfo

_NAMED = 20
"""Problems of one submission that its refusal names."""


MAX_JSON = 256 << 20
"""Bytes of memory that submitted text may take when it is read as JSON, for a field of another type than text."""


class Refused(Exception):
    """A submission does not fit the output fields; the text is what the root is told."""


def outputs_of(signature: type[dspy.Signature]) -> tuple[OutputInfo, ...]:
    """The output fields as the contract states them."""
    infos = []
    for name, field in signature.output_fields.items():
        desc = str((field.json_schema_extra or {}).get("desc") or "")
        desc = "" if desc == f"${{{name}}}" else " ".join(desc.split())
        limits = [str(item) for item in field.metadata]
        if limits:
            desc = f"{desc} ({', '.join(limits)})".strip()
        infos.append(OutputInfo(name, type_text(field.annotation), desc, _schema(field.annotation)))
    return tuple(infos)


def type_text(annotation: Any) -> str:
    """A type as Python writes it, without module names: ``Literal['a', 'b']``, ``list[Clause]``, ``str | None``."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is inspect.Parameter.empty:
        return "Any"
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_text(argument) for argument in arguments)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is not None and arguments:
        inner = ", ".join("..." if a is ... else type_text(a) if not isinstance(a, list) else "..." for a in arguments)
        return f"{getattr(origin, '__name__', str(origin))}[{inner}]"
    return getattr(annotation, "__name__", None) or str(annotation).replace("typing.", "")


def _schema(annotation: Any) -> dict[str, Any] | None:
    """JSON schema of a type that its name does not explain: models, dataclasses, typed dicts, at any depth."""
    if not _has_fields(annotation):
        return None
    try:
        return pydantic.TypeAdapter(annotation).json_schema()
    except Exception:
        # A schema is a help and no more; some types have none, each for a reason of its own.
        return None


def _has_fields(annotation: Any) -> bool:
    if isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
        if issubclass(annotation, (pydantic.BaseModel, enum.Enum)) or hasattr(annotation, "__dataclass_fields__"):
            return True
        # Typed dicts and named tuples.
        return issubclass(annotation, (dict, tuple)) and hasattr(annotation, "__annotations__")
    return any(_has_fields(argument) for argument in typing.get_args(annotation))


def validate(submission: Submission, signature: type[dspy.Signature]) -> dict[str, Any]:
    """The outputs, each in its field's type.

    Positional arguments fill the output fields in their order. Values are converted as pydantic converts them
    (``"3"`` to an int, a dict to a model); a text where another type is wanted may also be JSON of it. For a ``str``
    field numbers and containers become their text, as in ``dspy.RLM``.

    Raises:
        Refused: Fields are missing, unknown, given twice, or of the wrong type; the message names each.
    """
    fields = signature.output_fields
    names = list(fields)
    if len(submission.args) > len(names):
        raise Refused(f"SUBMIT takes {len(names)} value(s) ({', '.join(names)}), {len(submission.args)} were given")
    given = dict(zip(names, submission.args, strict=False))
    twice = sorted(given.keys() & submission.kwargs.keys())
    unknown = sorted(submission.kwargs.keys() - fields.keys())
    problems = [f"{name} was given twice" for name in twice]
    problems += [f"{one_line(name)} is not an output; the outputs are {', '.join(names)}" for name in unknown]
    given.update(submission.kwargs)
    outputs: dict[str, Any] = {}
    for name, field in fields.items():
        if name not in given:
            try:
                default = field.get_default(call_default_factory=True)
            except Exception as error:
                problems.append(f"{name} is missing, and its default cannot be made ({one_line(str(error), 500)})")
                continue
            if default is PydanticUndefined:
                problems.append(f"{name} is missing")
            else:
                outputs[name] = default
            continue
        try:
            outputs[name] = convert(given[name], field.rebuild_annotation())
        except Exception as error:
            # Also what a model's own validators raise: whatever was submitted, it is a turn and not the end of the run.
            problems.append(f"{name}: expected {type_text(field.annotation)}, {_reason(error, given[name])}")
    if problems:
        more = [f"and {len(problems) - _NAMED} more"] if len(problems) > _NAMED else []
        raise Refused("; ".join(problems[:_NAMED] + more))
    return outputs


def doubt(
    submission: Submission,
    outputs: dict[str, Any],
    signature: type[dspy.Signature],
    seen_zero: bool = True,
    meant: Callable[[str, Any], bool] = lambda name, value: False,
) -> tuple[str, str] | None:
    """Why an answer that fits its types may not be meant: it is empty, a placeholder, or a container for text.

    Empty (None, no text, no items, 0) is doubtful only where the whole answer is: beside an output that says something
    it is an answer like any other. False always says something. Literals and enums are never placeholders.

    Args:
        submission: As it was given.
        outputs: What `validate` made of it.
        signature: The task signature.
        seen_zero: An output before this one has shown a 0, so that this answer is no surprise.
        meant: Tells of an output's name and value whether it was doubted before, and is meant.

    Returns:
        The name of the doubtful output and the reason, or None.
    """
    given = {**dict(zip(outputs, submission.args, strict=False)), **submission.kwargs}
    candidates = {name: value for name, value in outputs.items() if name in given and not meant(name, value)}
    types_ = {name: signature.output_fields[name].annotation for name in given}
    # A word of a Literal or an enum is chosen, also if it is "none".
    empty = {n for n in given if is_empty(outputs[n]) and not _chosen(outputs[n], types_[n])}
    for name, value in candidates.items():
        annotation = types_[name]
        if annotation is str and isinstance(given[name], _CONTAINERS):
            kind = type(given[name]).__name__
            return name, (
                f"{name} is to be one text (str), and it got a {kind} of {len(given[name])}. Submit the text itself."
            )
        if isinstance(value, str) and len(value) < 300 and not _chosen(value, annotation):
            said = value.strip().lower().strip("<>{}[]\"'")
            if said in _PLACEHOLDERS | {name.lower()}:
                return name, f"{name} is {one_line(value)!r}, which is no answer. {_AGAIN}"
            if "SUBMIT was refused" in value or said.startswith("error]"):
                return name, f"{name} is {one_line(value)!r}, which is a message of the REPL. {_AGAIN}"
            if _SURRENDER.search(value):
                return name, f"{name} is {one_line(value)!r}, which gives up. {_AGAIN}"
        if len(empty) == len(given):
            if type(value) not in (int, float):
                return name, f"{name} is empty ({value!r}). {_AGAIN}"
            if not seen_zero:
                return name, f"{name} is 0 before any output has shown it. {_AGAIN}"
    return None


def is_empty(value: Any) -> bool:
    """True if ``value`` says nothing: None, 0, no items, no text to speak of (``""``, ``"none"``); False says much."""
    if isinstance(value, str):
        return len(value) < 100 and value.strip().lower().strip("<>{}[]\"'") in _NO_TEXT
    if isinstance(value, _CONTAINERS):
        return not value
    return value is None or (type(value) in (int, float) and value == 0)


def _chosen(value: Any, annotation: Any) -> bool:
    """True if ``value`` is one of the words, or the numbers, that ``annotation`` lists."""
    if typing.get_origin(annotation) is typing.Literal:
        return True
    return isinstance(value, enum.Enum) or (isinstance(value, str) and not _takes_any_text(annotation))


def _takes_any_text(annotation: Any) -> bool:
    """True for ``str``, ``str | None``, ``Any`` and the like; a Literal or an enum has chosen its words itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(map(_takes_any_text, typing.get_args(annotation)))
    return annotation in (str, Any)


_CONTAINERS = (list, tuple, dict, set, frozenset)
_SURRENDER = re.compile(
    r"\b((not|never|no \w+|no \w+ \w+|nothing) (found|available|mentioned|known|specified|provided)"
    r"|(don't|do not|cannot|can't|could not|couldn't|unable to) (know|find|determine|answer|be (found|determined)))\b"
    r"|\b(is|are|was|were|remains?) unknown\b|^\W*unknown\W*$",
    re.IGNORECASE,
)
_NO_TEXT = frozenset({"", "none", "null"})
_PLACEHOLDERS = frozenset({"...", "…", "answer", "value", "result", "your answer"})
_AGAIN = "Look at the data again; if this is the answer all the same, submit it once more."


def convert(value: Any, annotation: Any) -> Any:
    """``value`` in the type ``annotation``, as `validate` does for one field."""
    if annotation is str and not isinstance(value, str):
        if value is None:
            raise TypeError("got None")
        return str(value)
    try:
        adapter = pydantic.TypeAdapter(annotation)
    except pydantic.PydanticSchemaGenerationError:
        adapter = pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
    try:
        return adapter.validate_python(value)
    except pydantic.ValidationError:
        if not isinstance(value, str):
            raise
        if json_cost(value) > MAX_JSON or too_deep(value):
            raise TypeError("text too long or too deep to be read as JSON: submit the value itself") from None
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = value
        if parsed is value:
            raise
        return adapter.validate_python(parsed)


def _reason(error: Exception, value: Any) -> str:
    if isinstance(error, pydantic.ValidationError):
        places = (("".join(f"{part}." for part in item["loc"])[:-1], item["msg"]) for item in error.errors()[:5])
        text = "; ".join(f"{place}: {message}" if place else message for place, message in places)
    else:
        text = str(error)
    return f"got {one_line(short_repr(value))} ({one_line(text, 500)})"
