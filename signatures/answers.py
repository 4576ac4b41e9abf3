"""Taking the last answer out of a reply that does not keep to the form asked for, as small models' often do not."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping
from typing import Any

import pydantic

from rlm_dspy.signatures.dialect import find_code

_PLACES = 20
"""Calls of ``SUBMIT`` that are tried, from the last one on."""

_LONGEST = 200_000
"""Characters that one of them may have."""

_TOKEN = re.compile(
    r"""'{3}(?:[^\\]|\\.)*?'{3}|"{3}(?:[^\\]|\\.)*?"{3}|'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+"|[()]""", re.DOTALL
)
_FENCED = re.compile(r"\A```(?:json|text)[ \t]*\n(.*?)(?:\n?```)?\Z", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,_]*(?:\.\d+)?(?![\w])")


def salvage(text: str, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The outputs that ``text`` holds, or None if it cannot be told.

    A ``SUBMIT`` call with constants counts as what it would have submitted. Where one output is asked for, the whole
    reply may be its value: as JSON or a Python literal, the only number, the items of a list line by line. Of a list
    that breaks off, which is what a model gives that has no tokens left, the whole items count.

    Args:
        text: The reply.
        fields: Name of each output to its type.
    """
    submitted = _submitted(find_code(text).code or text, list(fields))
    if submitted is not None:
        return _typed(submitted, fields)
    text = _FENCED.sub(r"\1", text.strip())
    if len(fields) != 1 or "```" in text:
        return None
    ((name, annotation),) = fields.items()
    for value in _readings(_bare(text, name), annotation):
        typed = _typed({name: value}, fields)
        if typed is not None:
            return typed
    return None


def _submitted(code: str, names: list[str]) -> dict[str, Any] | None:
    """The values of the last ``SUBMIT(...)`` in ``code`` that was given nothing but constants."""
    for place in reversed(list(re.finditer(r"\bSUBMIT\(", code))[-_PLACES:]):
        call = _call(code[place.start() : place.start() + _LONGEST])
        if call is None or len(call.args) > len(names) or any(keyword.arg not in names for keyword in call.keywords):
            continue
        try:
            values = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
            values |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        if values.keys() == set(names) and Ellipsis not in values.values():
            return values
    return None


def _call(text: str) -> ast.Call | None:
    """The call that ``text`` begins with; found by its brackets, as what follows it need not be Python."""
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if token[0] == ")" and depth <= 0:
            try:
                tree = ast.parse(text[: token.end()], mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
            return tree if isinstance(tree, ast.Call) else None
    return None


def _bare(text: str, name: str) -> str:
    """``text`` less what models put round a value: its name, backticks, bold marks, DSPy's field markers."""
    text = re.sub(r"\[\[ ## \w+ ## \]\]", "\n", text)
    text = text.replace("{" + name + "}", "").strip().strip("`*").strip()
    label, separator, rest = text.partition(":")
    if separator and label.strip().strip("`*\"'").lower() in (name.lower(), "answer", "the answer", "final answer"):
        text = rest.strip().strip("`*").strip()
    return text


def _readings(text: str, annotation: Any) -> list[Any]:
    """What ``text`` may mean, best first."""
    if annotation is str:
        return [text] if text else []
    readings: list[Any] = []
    opening = re.search(r"[\[{(]", text)
    closing = max(map(text.rfind, "]})")) + 1
    for literal in (text, text[opening.start() : closing]) if opening and opening.start() < closing else (text,):
        try:
            readings.append(ast.literal_eval(literal))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            readings.append(literal)
    if text.startswith("[") and not text.endswith("]") and len(text) <= _LONGEST:
        whole = text[: max(text.rfind(","), 1)] + "]"
        with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            readings.append(ast.literal_eval(whole))
    numbers = {number.replace(",", "").replace("_", "") for number in _NUMBER.findall(text)}
    if annotation in (int, float) and len(numbers) == 1:
        readings.append(numbers.pop())
    items = [line.strip().lstrip("-*•0123456789.) ").strip("\"'` ") for line in text.splitlines() if line.strip()]
    if len(items) == 1:
        items = [item.strip().strip("\"'` .") for item in items[0].split(",")]
    return [*readings, items]


def _typed(values: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        return {name: _convert(values[name], annotation) for name, annotation in fields.items()}
    except Exception:
        # Validators of the user's own may raise what they like; either way the text is not a value of this type.
        return None


def _convert(value: Any, annotation: Any) -> Any:
    if annotation is str and not isinstance(value, str):
        return str(value)
    return pydantic.TypeAdapter(annotation).validate_python(value)
