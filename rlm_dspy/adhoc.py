"""Signatures that code in the sandbox makes up: ``predict("text, n: int -> label: Literal['a', 'b']", text=...)``.

The text comes from a language model, so nothing of it is evaluated and no name is looked up anywhere: the types are the
ones of `rlm_dspy.adhoc_types`, those built of them, and those that ``types=`` describes by JSON Schema
(`rlm_dspy.schemas`). DSPy's own parser of such texts looks names up in its callers' frames, and is not used.
"""

from __future__ import annotations

import json
import keyword
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_origin

import dspy
import pydantic

from rlm_dspy import schemas
from rlm_dspy.adhoc_types import BUILT_IN, read_type, shortened

MAX_TEXT = 8_000
"""Characters of a signature."""
MAX_FIELDS = 32
"""Fields of a signature."""
MAX_INSTRUCTIONS = 20_000
"""Characters of instructions."""
MAX_TYPES = 32
"""Types that one call may name."""

EXAMPLE = "\"text, labels: list[str] -> label: Literal['a', 'b'], reason: str\""

_RESERVED = frozenset("self signature types instructions model lm demos config new_signature prediction".split())
"""What ``predict`` and DSPy's predictors take for themselves."""

_TOKEN = re.compile(r"""'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+"|->|[\[\](){},:=\n]|['"]""")

Signature = type[dspy.Signature]
_Key = tuple[str, str, str]


class _Cache:
    """The signatures last asked for.

    Args:
        size: How many, at most.
        chars: Characters that the texts and schemas which they were made of may have together, as a measure of memory.
    """

    def __init__(self, size: int, chars: int) -> None:
        self._size, self._chars = size, chars
        self._kept: OrderedDict[_Key, Signature] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> Signature | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: _Key, made: Signature) -> Signature:
        with self._lock:
            if key in self._kept:
                return self._kept[key]
            self._kept[key] = made
            self._held += sum(map(len, key))
            while len(self._kept) > self._size or (self._held > self._chars and len(self._kept) > 1):
                self._held -= sum(map(len, self._kept.popitem(last=False)[0]))
            return made

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._held = 0


# Those with patterns are few: a compiled pattern may take megabytes.
_caches = {False: _Cache(256, 500_000), True: _Cache(8, 500_000)}


def signature(text: str, types: Mapping[str, Any] | None = None, instructions: str = "") -> Signature:
    """The signature that ``text`` describes; the same class for the same arguments, as long as it is remembered.

    Args:
        text: ``"inputs -> outputs"``, each a list of names with types: ``"item, n: int -> label: Literal['a', 'b']"``.
            A name without a type is a ``str``.
        types: Further types by name, each a JSON Schema: see `rlm_dspy.schemas`.
        instructions: What the LM is told to do; a line that names the fields if empty.

    Raises:
        ValueError: Some of it is malformed, unknown, reserved or too large; the message says what to write instead.
    """
    return keyed(text, types, instructions)[1]


def keyed(
    text: str, types: Mapping[str, Any] | None = None, instructions: str = ""
) -> tuple[tuple[str, str, str], Signature]:
    """`signature`, and what it is known by: equal for equal arguments, also where the class is no longer remembered."""
    if not isinstance(text, str) or not isinstance(instructions, str):
        what = "a signature" if not isinstance(text, str) else "instructions"
        raise ValueError(f"{what} must be a text (str); a signature is written like {EXAMPLE}")
    if len(text) > MAX_TEXT or len(instructions) > MAX_INSTRUCTIONS:
        raise ValueError(
            f"a signature has at most {MAX_TEXT:,} characters, instructions {MAX_INSTRUCTIONS:,}; "
            "pass what is to be read as an input"
        )
    named = _named(types)
    key = text, json.dumps(named), instructions.strip()
    cache = _caches["pattern" in key[1]]
    return key, cache.get(key) or cache.put(key, _make(text, named, instructions.strip()))


def clear_cache() -> None:
    """Forget the signatures made so far."""
    for cache in _caches.values():
        cache.clear()


def _named(types: Mapping[str, Any] | None) -> dict[str, Any]:
    if types is None:
        return {}
    shape = 'types={"Person": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}'
    if not isinstance(types, Mapping):
        raise ValueError(f"types is a dict of name to JSON Schema, like {shape}")
    if len(types) > MAX_TYPES:
        raise ValueError(f"types names at most {MAX_TYPES} types, {len(types):,} were given")
    named = dict(types)
    for name, schema in named.items():
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"types: {shortened(name)} is no name for a type; use letters, like {shape}")
        if name in BUILT_IN:
            raise ValueError(f"types: {name} is a type of Python; give yours another name")
        if not isinstance(schema, Mapping) and schema is not True:
            raise ValueError(f"types[{name!r}] is a JSON Schema (a dict), like {shape}")
        if isinstance(schema, Mapping) and schema and not schema.keys() & _SCHEMA_WORDS:
            raise ValueError(f"types[{name!r}] is no JSON Schema; write it like {shape}")
    schemas.check_size(named)
    return named


_SCHEMA_WORDS = frozenset(
    "type properties items prefixItems enum const anyOf oneOf allOf $ref format pattern title description "
    "additionalProperties required not if minimum maximum minLength maxLength default nullable $defs".split()
)


def _make(text: str, named: dict[str, Any], instructions: str) -> Signature:
    inputs, outputs = _sides(text)
    built = schemas.build(named) if named else {}
    fields: dict[str, Any] = {}
    for side, kind in ((inputs, dspy.InputField), (outputs, dspy.OutputField)):
        for name, written in side:
            if name in fields:
                raise ValueError(f"{name} stands there twice; every input and output has a name of its own")
            annotation, desc = (str, "") if written is None else _annotation(name, written, built, named)
            fields[name] = annotation, kind(desc=desc) if desc else kind()
    if len(fields) > MAX_FIELDS:
        raise ValueError(f"a signature has at most {MAX_FIELDS} fields; put some into one dict or type")
    said = instructions or default_instructions([name for name, _ in inputs], [name for name, _ in outputs])
    try:
        return dspy.Signature(fields, said)
    except (pydantic.errors.PydanticUserError, TypeError, NameError) as error:
        raise ValueError(f"DSPy cannot make a signature of this: {str(error).splitlines()[0][:300]}") from None


def default_instructions(inputs: list[str], outputs: list[str]) -> str:
    """What an LM is told where nobody said it: which fields to read, which to give, and nothing beside them."""
    given, wanted = _listed(inputs), _listed(outputs)
    return f"Read {given}, then give {wanted}. Go by what is written there, and add nothing."


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


# ------------------------------------------------------------------------------------------------------------- fields


def _sides(text: str) -> tuple[list[tuple[str, str | None]], list[tuple[str, str | None]]]:
    """Names and written types of the inputs and of the outputs."""
    arrows = [token.span() for token in _TOKEN.finditer(text) if token[0] == "->"]
    if len(arrows) != 1:
        problem = "no -> in it" if not arrows else f"{len(arrows)} -> in it"
        raise ValueError(f"the signature {shortened(text)} has {problem}; write inputs -> outputs, like {EXAMPLE}")
    ((start, end),) = arrows
    inputs, outputs = (list(_fields(part)) for part in (text[:start], text[end:]))
    for side, word in ((inputs, "input"), (outputs, "output")):
        if not side:
            raise ValueError(f"{shortened(text)} names no {word}; write inputs -> outputs, like {EXAMPLE}")
    if wrong := sorted(_RESERVED & {name for name, _ in (*inputs, *outputs)}):
        raise ValueError(f"{wrong[0]} is a name that predict uses itself; call the field {wrong[0]}_text, for example")
    return inputs, outputs


def _fields(side: str) -> Iterator[tuple[str, str | None]]:
    for piece in _pieces(side):
        name, colon, written = piece.partition(":")
        name, written = name.strip(), written.strip()
        if not name.isidentifier():
            shown = f"{shortened(name)} is no name for a field" if name else "a field has no name"
            raise ValueError(f"{shown}; names are made of letters, digits and _, like {EXAMPLE}")
        if keyword.iskeyword(name):
            raise ValueError(f"{name} is a word of Python and no name for a field; write {name}_ or another name")
        if name.startswith("_") or name.startswith("model_") or hasattr(dspy.Signature, name):
            other = name.strip("_").removeprefix("model_") or "field"
            other = f"{other}_text" if hasattr(dspy.Signature, other) else other
            raise ValueError(f"{name} cannot be the name of a field; write {other}, for example")
        if colon and not written:
            raise ValueError(f"{name} has a : and no type behind it; write {name}: str, for example")
        yield name, written if colon else None


def _pieces(side: str) -> Iterator[str]:
    """``side`` cut at the commas outside of brackets and quotes."""
    depth = start = 0
    for token in _TOKEN.finditer(side):
        mark = token[0]
        if mark in "'\"":
            raise ValueError(f"a quote is open in {shortened(side.strip())}; write Literal['a', 'b'], for example")
        if mark in "[({":
            depth += 1
        elif mark in "])}":
            depth -= 1
        elif mark == "=" and depth == 0:
            raise ValueError("fields of a signature have no default (=); leave it out, or say it in instructions=")
        elif mark == "," and depth == 0:
            yield side[start : token.start()]
            start = token.end()
        if depth < 0:
            break
    if depth:
        raise ValueError(f"the brackets do not match in {shortened(side.strip())}; write list[str], for example")
    last = side[start:]
    if last.strip():
        yield last


def _annotation(name: str, written: str, built: dict[str, Any], named: dict[str, Any]) -> tuple[Any, str]:
    """The type that is written behind the field ``name``, and what is to be said of it."""
    annotation, word = read_type(written, built, name)
    if annotation is None or annotation is type(None):
        raise ValueError(f"{name}: None alone says nothing; write str | None, for example")
    schema = named[word] if word else None
    if not isinstance(schema, dict):
        return annotation, ""
    desc = schema["description"] if isinstance(schema.get("description"), str) else ""
    if get_origin(annotation) is Annotated:
        # DSPy shows the bounds of what is inside of a type, and not those of the type of a field itself.
        bounds = {word: value for word, value in schema.items() if word not in ("title", "description", "$defs")}
        desc = f"{desc} {json.dumps(bounds)}".strip()
    return annotation, desc
