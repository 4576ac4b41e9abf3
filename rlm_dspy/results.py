"""What code in the sandbox gets of a typed sub-call: values of Python, and objects with attributes for models.

The codec between host and sandbox turns models and dataclasses into records by itself. It is done here beforehand: the
models of ad-hoc types keep the names of their JSON Schema in the sandbox, outputs of modules may hold what does not
cross, and classes made for one call must not be remembered by the codec.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import re
from collections.abc import Mapping
from typing import Any

import dspy
import pydantic
import pydantic_core

from rlm_dspy.environments.records import Record
from rlm_dspy.schemas import SchemaModel

__all__ = ["to_sandbox", "value_for_sandbox"]

MAX_DEPTH = 150
"""Levels of nesting that a result may have; the channel carries 200."""

_AS_TEXT = (
    *(pydantic.AnyUrl, pydantic_core.Url, pydantic_core.MultiHostUrl, pydantic.SecretStr, pydantic.SecretBytes),
    *(ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network, re.Pattern),
)


def to_sandbox(prediction: Any, signature: type[dspy.Signature] | None = None) -> Any:
    """The outputs of ``prediction`` as the sandbox gets them.

    Args:
        prediction: What a predictor or any module returned.
        signature: Whose outputs are wanted, in their order; all that the prediction has if None.

    Returns:
        The value of a single output; for several an object that has them by attribute and by key. What is no prediction
        is a value itself. An output that the prediction lacks is None.
    """
    if not isinstance(prediction, dspy.Example):
        return value_for_sandbox(prediction)
    names = list(signature.output_fields) if signature is not None else list(prediction.keys())
    values = {name: value_for_sandbox(prediction.get(name)) for name in names}
    if len(values) == 1:
        return next(iter(values.values()))
    return _record("Result", "dataclass", values)


def value_for_sandbox(value: Any) -> Any:
    """``value`` with all that code in the sandbox has no class for in a form that it knows.

    Models, dataclasses and DSPy's examples become records, enums their values, reasoning and addresses text; containers
    are gone through. What else there is stays as it is: dates, numbers, arrays, data frames.

    Raises:
        ValueError: It is nested too deep, or contains itself.
    """
    return _convert(value, 0)


def _record(name: str, kind: str, fields: Mapping[str, Any]) -> Record:
    record = Record(name, kind)
    # By no call with keywords: a field may be called like a parameter, and need not be an identifier.
    record.__dict__.update(fields)
    return record


def _convert(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in (str, int, float, bool, type(None), bytes):
        return value
    if depth > MAX_DEPTH:
        raise ValueError(f"a result is nested more than {MAX_DEPTH} levels deep, or contains itself")
    depth += 1
    if isinstance(value, enum.Enum):
        return _convert(value.value, depth)
    if isinstance(value, dspy.Reasoning):
        return value.content
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, pydantic.BaseModel):
        return _record(kind.__name__, "model", {n: _convert(v, depth) for n, v in _model_fields(value).items()})
    if isinstance(value, dspy.Example):
        return _record(kind.__name__, "dataclass", {n: _convert(v, depth) for n, v in value.items()})
    if dataclasses.is_dataclass(kind):
        found = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}
        return _record(kind.__name__, "dataclass", {n: _convert(v, depth) for n, v in found.items()})
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        pairs = zip(kind._fields, value, strict=True)
        return _record(kind.__name__, "namedtuple", {n: _convert(v, depth) for n, v in pairs})
    if isinstance(value, dict):
        return {_convert(k, depth): _convert(v, depth) for k, v in value.items()}
    if kind in (list, tuple):
        return kind(_convert(item, depth) for item in value)
    if kind in (set, frozenset):
        items = [_convert(item, depth) for item in value]
        try:
            return kind(items)
        except TypeError:
            # A model that hashes by its own rules is a record that does not.
            return items
    return value


def _model_fields(model: pydantic.BaseModel) -> dict[str, Any]:
    by_schema = isinstance(model, SchemaModel)
    fields = {
        (info.alias or name) if by_schema else name: getattr(model, name)
        for name, info in type(model).model_fields.items()
    }
    return {**fields, **(model.model_extra or {})}
