"""The inputs of a run: checked against the signature, files read, and summarised for the contract."""

from __future__ import annotations

import dataclasses
import itertools
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
import pydantic
from pydantic_core import PydanticUndefined

from rlm_dspy import documents, first_look
from rlm_dspy.data import Data, is_records
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.passages import SEARCHED
from rlm_dspy.signatures.answered import asks, task_text
from rlm_dspy.signatures.contract import PREVIEW, SHORT, VariableInfo


class InputError(ConfigurationError):
    """The call's keyword arguments do not match the signature's inputs."""


def bind(signature: type[dspy.Signature], given: Mapping[str, Any]) -> dict[str, Any]:
    """Match a call's keyword arguments with the signature: defaults filled in, paths read.

    Args:
        signature: The user's task signature.
        given: The keyword arguments of the call.

    Returns:
        One value an input field, in the signature's order.

    Raises:
        InputError: An input is missing or unknown, or a path cannot be read.
    """
    unexpected = sorted(set(given) - set(signature.input_fields))
    if unexpected:
        raise InputError(
            f"Unexpected inputs {unexpected}: the signature's inputs are {sorted(signature.input_fields)}. "
            "Options of one call go through rlm.with_options(...)."
        )
    values: dict[str, Any] = {}
    missing: list[str] = []
    for name, field in signature.input_fields.items():
        if name in given:
            values[name] = _read_path(name, given[name], field.annotation)
        elif field.default is not PydanticUndefined:
            values[name] = field.default
        elif field.default_factory is not None:
            values[name] = field.get_default(call_default_factory=True)
        else:
            missing.append(name)
    if missing:
        raise InputError(f"Missing required inputs: {missing}. Pass each as a keyword, as in rlm({missing[0]}=...).")
    return values


def _read_path(name: str, value: Any, annotation: Any) -> Any:
    """The content of a ``pathlib.Path`` given as an input; every other value as it is.

    A file becomes text, or bytes where the field says ``bytes`` or the content is not UTF-8. A folder becomes a dict
    of relative path to text, without what is hidden, leads out of the folder, or is no text (`rlm_dspy.documents`).
    """
    if not isinstance(value, Path):
        return value
    try:
        if value.is_dir():
            return documents.folder(value).value
        data = value.read_bytes()
    except documents.DocumentError as error:
        raise InputError(f"Input {name!r}: {error}") from error
    except OSError as error:
        raise InputError(f"Input {name!r}: cannot read {value}: {error.strerror or error}") from error
    return data if annotation is bytes else _text(data)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data


def describe(name: str, value: Any, desc: str = "", look: str | None = None) -> VariableInfo:
    """What the root may know of ``value``: type, size and a short preview, never the whole of a large one.

    Args:
        name: The variable's name.
        value: Its value on the host.
        desc: The field's description.
        look: The task, to show lines of a large text or some of many records for it (`rlm_dspy.first_look`); None for
            no such look.
    """
    # DSPy gives a field without a description the placeholder "${name}".
    desc = "" if desc == f"${{{name}}}" else " ".join(desc.split())
    preview, whole = _preview(value)
    about = VariableInfo(name, _type_name(value), _size(value), preview, whole, desc)
    if not whole and (isinstance(value, str) or is_records(value)):
        about = dataclasses.replace(about, form=Data(name, value).form)
    return about if look is None else looked_at(about, value, look)


def looked_at(about: VariableInfo, value: Any, task: str, data: Data | None = None) -> VariableInfo:
    """``about`` with lines of ``value`` for ``task``, where that is a large text or many records.

    Goes through all of it. ``data`` is what is known of ``value`` already.
    """
    if about.whole or not (isinstance(value, str) or is_records(value)):
        return about
    data = data or Data(about.name, value)
    words = first_look.telling_words(data, task)
    look = first_look.look(data, task, words)
    searched = len(data.text) <= SEARCHED
    return dataclasses.replace(about, look=look, words=tuple(words.items()), searched=searched)


def default_instructions(signature: type[dspy.Signature]) -> bool:
    """True if the signature's instructions are the sentence that DSPy makes of its field names."""
    inputs, outputs = (
        ", ".join(f"`{name}`" for name in fields) for fields in (signature.input_fields, signature.output_fields)
    )
    return bool(signature.instructions.strip() == f"Given the fields {inputs}, produce the fields {outputs}.")


ASKED = 5_000
"""Characters of a text input that may still be a question."""


def asked(signature: type[dspy.Signature], values: Mapping[str, Any]) -> str:
    """All that a run's task is told by: its text inputs but the data, then the signature's own instructions.

    The data is the largest text, where it is longer than a question in one breath.
    """
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    data = max(texts, key=lambda name: len(texts[name]), default="")
    long = [
        text for name, text in texts.items() if SHORT < len(text) <= ASKED and name != data and asks(name)
    ]
    parts = [text for text in (task_text(values), *long) if text]
    return "\n".join([*parts, *([] if default_instructions(signature) else [signature.instructions])]).strip()


def _type_name(value: Any) -> str:
    if isinstance(value, list) and value:
        inner = {type(item).__name__ for item in value[:100]}
        return f"list[{inner.pop()}]" if len(inner) == 1 else "list"
    if type(value).__module__.split(".")[0] in {"numpy", "pandas"}:
        return f"{type(value).__module__.split('.')[0]}.{type(value).__name__}"
    return type(value).__name__


def _size(value: Any) -> str:
    if isinstance(value, str):
        # An end of line at the very end begins no other one.
        lines = value.count("\n") + (not value.endswith("\n"))
        return f"{len(value):,} character{'s' if len(value) != 1 else ''}" + (f", {lines:,} lines" if lines > 1 else "")
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value):,} bytes"
    try:
        shape = getattr(value, "shape", None)
    except Exception:
        shape = None  # a property of a class that we know nothing of
    if isinstance(shape, tuple):
        return f"shape {shape}"
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        items = f"{len(value):,} items"
        texts = list(value.values()) if isinstance(value, dict) else value
        if texts and all(isinstance(item, str) for item in texts):
            items += f", {sum(map(len, texts)):,} characters in all"
        return items
    return ""


class _Short(reprlib.Repr):
    """Bounded ``repr`` for previews: the start of containers, head and tail of text."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxarray = 5
        self.maxdict = 8
        self.maxstring = 120
        self.maxother = 200
        self.maxlong = 60

    def repr1(self, value: Any, level: int) -> str:
        # Subclasses too: the base class would build the whole repr of a defaultdict or a named tuple.
        for kind in (str, bytes, bytearray, dict, list, tuple, set, frozenset):
            if isinstance(value, kind):
                shown: str = getattr(self, f"repr_{kind.__name__}")(value, level)
                return shown
        return super().repr1(value, level)

    def repr_str(self, value: str, level: int) -> str:
        # Cut before repr: repr of 100 MB would be made only to be thrown away.
        if len(value) > self.maxstring:
            return f"{value[: self.maxstring * 2 // 3]!r} … {value[-self.maxstring // 3 :]!r}"
        return repr(value)

    def repr_bytes(self, value: bytes | bytearray, level: int) -> str:
        return repr(value) if len(value) <= self.maxstring else f"{value[: self.maxstring]!r} …"

    repr_bytearray = repr_bytes

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > 10_000:
            # Python refuses to write out so long a number.
            return f"<int of {value.bit_length():,} bits>"
        return super().repr_int(value, level)

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        # In its own order; the base class sorts all keys of a large dict to show a few.
        if level <= 0 and value:
            return "{...}"
        pairs = itertools.islice(value.items(), self.maxdict)
        inner = [f"{self.repr1(key, level - 1)}: {self.repr1(item, level - 1)}" for key, item in pairs]
        return "{" + ", ".join(inner + ["..."] * (len(value) > self.maxdict)) + "}"

    def repr_set(self, value: Any, level: int) -> str:
        if not value:
            return f"{type(value).__name__}()"
        inner = [self.repr1(item, level - 1) for item in itertools.islice(value, self.maxset)] if level > 0 else []
        return "{" + ", ".join(inner + ["..."] * (len(value) > len(inner))) + "}"

    def repr_frozenset(self, value: Any, level: int) -> str:
        return f"frozenset({self.repr_set(value, level)})" if value else "frozenset()"

    def repr_instance(self, value: Any, level: int) -> str:
        if isinstance(value, pydantic.BaseModel):
            items = {name: getattr(value, name) for name in type(value).model_fields}
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            items = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        else:
            return super().repr_instance(value, level)
        inner = ", ".join(f"{name}={self.repr1(item, level - 1)}" for name, item in list(items.items())[: self.maxdict])
        return f"{type(value).__name__}({inner}{', …' if len(items) > self.maxdict else ''})"


_short = _Short()


def short_repr(value: Any) -> str:
    """A bounded ``repr`` of anything, made without building a long one first; never raises."""
    try:
        return _short.repr(value)
    except Exception:
        # A list or dict of a class whose own methods fail.
        return f"<{type(value).__name__}>"


def repr_fits(value: Any, limit: int) -> bool:
    """Whether ``repr`` of plain data stays below about ``limit`` characters, told without building it."""
    todo, left = [value], limit
    while todo:
        item = todo.pop()
        if isinstance(item, (str, bytes, bytearray)):
            left -= len(item)
        elif isinstance(item, int):
            left -= item.bit_length() // 4
        elif isinstance(item, Mapping):
            left -= 4 * len(item)
            if left >= 0:
                todo += itertools.chain.from_iterable(item.items())
        elif isinstance(item, (list, tuple, set, frozenset)):
            left -= 2 * len(item)
            if left >= 0:
                todo += item
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            todo += vars(item).values() if hasattr(item, "__dict__") else ()
        elif isinstance(item, pydantic.BaseModel):
            todo += item.__dict__.values()
        left -= 2
        if left < 0:
            return False
    return True


def _preview(value: Any) -> tuple[str, bool]:
    if isinstance(value, str):
        if len(value) <= SHORT:
            return repr(value), True
        return f"{value[:PREVIEW]!r} … {value[-PREVIEW // 2 :]!r}", False
    if isinstance(value, (bytes, bytearray)):
        return (repr(bytes(value)), True) if len(value) <= 200 else (f"{bytes(value[:200])!r} …", False)
    rlm_preview = getattr(value, "rlm_preview", None)
    if callable(rlm_preview):
        return str(rlm_preview(PREVIEW)), False
    module = type(value).__module__.split(".")[0]
    if module == "pandas" and hasattr(value, "head"):
        text = repr(value.head(3))
        columns = getattr(value, "columns", None)
        listed = f"columns {list(columns)[:40]}; " if columns is not None else ""
        return f"{listed}{text[:PREVIEW]!r}", False
    if module == "numpy":
        if str(getattr(value, "dtype", "")) == "object" and hasattr(value, "flat"):
            return _short.repr(list(itertools.islice(value.flat, 5)))[:PREVIEW], False
        return _short.repr(value)[:PREVIEW], False
    small = _small(value)
    text = repr(value) if small else _short.repr(value)
    return (text, True) if small and len(text) <= SHORT else (text[: SHORT * 2], False)


def _small(value: Any, depth: int = 0) -> bool:
    """True where ``repr`` of the value is surely short."""
    if isinstance(value, (str, bytes)):
        return len(value) <= SHORT
    if isinstance(value, (list, tuple, set, frozenset)):
        return depth < 4 and len(value) <= 20 and all(_small(item, depth + 1) for item in value)
    if isinstance(value, dict):
        parts = itertools.chain.from_iterable(value.items())
        return depth < 4 and len(value) <= 20 and all(_small(item, depth + 1) for item in parts)
    if isinstance(value, int):
        return value.bit_length() <= 1_000
    return isinstance(value, (float, type(None))) or type(value).__module__ == "datetime"
