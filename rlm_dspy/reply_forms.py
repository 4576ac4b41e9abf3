"""In which form the reply to a chat request is wanted, and how values are put into that form.

DSPy's adapters end a request with one paragraph that names the output fields of the reply ("Respond with …"). Where it
is one of theirs, an RLM that writes the reply submits the fields, each by its name and in its type, and the form is put
round them here: the caller's adapter can then read every reply. Any other request is replied to with one text.
"""

from __future__ import annotations

import ast
import functools
import json
import keyword
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import dspy
from pydantic_core import to_jsonable_python

from rlm_dspy.tools import RESULT_NAMES

REPLY = "response"
"""The output of a request that wants no fields."""

Kind = Literal["text", "markers", "json", "xml"]

_REQUIREMENT = "Respond with "
_LONGEST = 50_000
"""Characters that the paragraph on the form may have: it names the members of every ``Literal``."""

_HINT = r"(?: \((must be .+?)\))?(?=, then |, and then |\.)"
_MARKED = re.compile(r"`\[\[ ## (\w+) ## \]\]`" + _HINT, re.DOTALL)
_KEYED = re.compile(r"`(\w+)`" + _HINT, re.DOTALL)
_TAGGED = re.compile(r"`<(\w+)>`")
_MARKER_LINE = re.compile(r"^[^\S\n]*\[\[ ## \w+ ## \]\]", re.MULTILINE)
_PYTHON = "must be formatted as a valid Python "


@dataclass(frozen=True)
class WantedField:
    """One field of the reply: its type where the request says it in words that are known here, and what it says."""

    annotation: Any = str
    desc: str = ""


@dataclass(frozen=True)
class ReplyForm:
    """The form of a reply.

    Attributes:
        kind: ``"text"`` for one text as it is; else whose form the fields are put into: DSPy's ``ChatAdapter``
            (``"markers"``), ``JSONAdapter`` or ``XMLAdapter``.
        fields: The fields of the reply by name, in the order in which they are wanted.
    """

    kind: Kind
    fields: Mapping[str, WantedField]

    def render(self, values: Mapping[str, Any]) -> str:
        """The reply that has ``values``, one for each of the fields."""
        if self.kind == "text":
            return as_text(values[REPLY])
        if self.kind == "json":
            return json.dumps({name: _plain(values[name]) for name in self.fields}, indent=2, ensure_ascii=False)
        if self.kind == "xml":
            return "\n\n".join(f"<{name}>\n{_escaped(as_text(values[name]))}\n</{name}>" for name in self.fields)
        parts = [f"[[ ## {name} ## ]]\n{_bare(name, as_text(values[name]))}" for name in self.fields]
        return "\n\n".join([*parts, "[[ ## completed ## ]]"])


TEXT = ReplyForm("text", {REPLY: WantedField(str, "the whole text of the reply, in the form that is asked for")})


def split_requirement(text: str) -> tuple[str, str]:
    """A user message without its last paragraph on the form of the reply, and that paragraph; ``""`` without one."""
    at = text.rfind(f"\n\n{_REQUIREMENT}")
    if at < 0:
        return ("", text) if text.startswith(_REQUIREMENT) and len(text) <= _LONGEST else (text, "")
    return (text[:at], text[at + 2 :]) if len(text) - at <= _LONGEST else (text, "")


def form_of(requirement: str) -> ReplyForm:
    """The form that the paragraph ``requirement`` asks for; `TEXT` where it is none that is known here."""
    fields: dict[str, WantedField] = {}
    kind: Kind = "text"
    if "`[[ ## " in requirement:
        # The last marker is that of the end.
        kind, found = "markers", [(name, hint) for name, hint in _MARKED.findall(requirement)][:-1]
    elif "JSON object in the following order of fields: " in requirement:
        kind, found = "json", _KEYED.findall(requirement.partition("order of fields: ")[2])
    elif "wrapped in XML tags " in requirement and "nested XML structure" not in requirement:
        kind, found = "xml", [(name, "") for name in _TAGGED.findall(requirement)]
    else:
        return TEXT
    for name, hint in found:
        if not name.isidentifier() or keyword.iskeyword(name) or name in RESULT_NAMES | {"self"} or name in fields:
            return TEXT
        annotation = type_of(hint.removeprefix(_PYTHON)) if hint.startswith(_PYTHON) else Any if hint else str
        # XML says no types.
        fields[name] = WantedField(Any if kind == "xml" else annotation, hint)
    return ReplyForm(kind, fields) if fields else TEXT


def type_of(text: str) -> Any:
    """The type that DSPy writes as ``text``, such as ``"list[str]"`` or ``"Literal['a', 'b']"``.

    Only types that the text says all of; where a name is not a built-in one, as that of a model, it is ``Any``.
    """
    try:
        return _typed(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return Any


_NAMES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "Any": Any,
    "None": type(None),
    "NoneType": type(None),
}


def _typed(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and node.value is None:
        return type(None)
    if isinstance(node, ast.Name):
        if node.id not in _NAMES:
            raise ValueError(node.id)
        return _NAMES[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _typed(node.left) | _typed(node.right)
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        raise ValueError("not a type")
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    name = node.value.id
    if name == "Literal":
        return Literal[tuple(ast.literal_eval(item) for item in inner)]
    arguments = tuple(map(_typed, inner))
    if name in ("Union", "Optional"):
        return functools.reduce(operator.or_, (*arguments, None) if name == "Optional" else arguments)
    if name not in ("list", "dict", "tuple", "set"):
        raise ValueError(name)
    return _NAMES[name][arguments]


def outputs(form: ReplyForm) -> dict[str, tuple[Any, Any]]:
    """The fields as outputs of a ``dspy.Signature``."""
    return {
        name: (field.annotation, dspy.OutputField(desc=field.desc) if field.desc else dspy.OutputField())
        for name, field in form.fields.items()
    }


def as_text(value: Any) -> str:
    """A value as DSPy's adapters write it into a message: text as it is, all else as JSON."""
    plain = value if isinstance(value, str) else _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return to_jsonable_python(value, fallback=lambda other: getattr(other, "__dict__", None) or str(other))


def _bare(name: str, text: str) -> str:
    """``text`` without the markers that a root has put round it itself, and with no line that would be read as one."""
    marker = f"[[ ## {name} ## ]]"
    if text.lstrip().startswith(marker):
        text = _MARKER_LINE.split(text.lstrip()[len(marker) :], maxsplit=1)[0].strip()
    # The adapter would end the field there, and what follows would be lost without a word.
    return _MARKER_LINE.sub(lambda found: found[0].replace("[[ ## ", "[[## ").replace(" ## ]]", " ##]]"), text)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
