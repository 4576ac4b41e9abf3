"""An RLM as a tool of an agent: `dspy.ReAct`, or another RLM.

A module by itself shows an agent neither its inputs nor what it is for, and no agent can write ten megabytes into the
arguments of a call. Here the large inputs are given beforehand, and the agent is asked for the others.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import dspy
import pydantic
from pydantic_core import PydanticUndefined

from rlm_dspy.errors import ConfigurationError

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM

__all__ = ["RLMTool", "as_tool"]

_awaited: ContextVar[bool] = ContextVar("rlm_dspy_tool_awaited", default=False)


class RLMTool(dspy.Tool):
    """A `dspy.Tool` that runs an RLM: ``tool(**inputs)`` blocks, ``await tool.acall(**inputs)`` does not."""

    async def acall(self, **inputs: Any) -> Any:
        """The answer, without blocking the event loop."""
        with _awaiting():
            return await super().acall(**inputs)


@contextmanager
def _awaiting() -> Iterator[None]:
    before = _awaited.set(True)
    try:
        yield
    finally:
        _awaited.reset(before)


def as_tool(
    rlm: RLM,
    *,
    inputs: Mapping[str, Any] | None = None,
    name: str | None = None,
    desc: str | None = None,
) -> RLMTool:
    """A tool whose arguments are the inputs of ``rlm`` and whose result is its answer.

    Args:
        rlm: The program. What is changed in it later, such as its LM, holds for the tool.
        inputs: Inputs given beforehand, by name, such as the large ones; the agent is not asked for them.
        name: What the agent calls; by default made from the class of the signature, else ``"ask"``.
        desc: What it is for, as the agent reads it; by default the instructions of the signature.

    Returns:
        The tool gives the value of a single output, and for several a dict by name. A run without an answer raises
        RuntimeError with the reason, which agents are shown as what the tool said.

    Raises:
        ConfigurationError: ``inputs`` names what the signature does not have, or ``name`` is no identifier.
    """
    given = dict(inputs or {})
    fields = rlm.signature.input_fields
    if unknown := sorted(set(given) - set(fields)):
        raise ConfigurationError(f"no input is named {unknown[0]!r}; the signature has {', '.join(fields)}")
    name = name or _name_of(rlm.signature)
    if not name.isidentifier():
        raise ConfigurationError(f"a tool's name has to be an identifier, and {name!r} is none")
    outputs = tuple(rlm.signature.output_fields)

    def ask(**arguments: Any) -> Any:
        # Bound late: a coroutine for `acall`, which is the only one that can await it.
        if _awaited.get():
            # Not for what is called inside of it.
            _awaited.set(False)
            return _answered_later({**given, **arguments})
        return _answer(rlm(**given, **arguments), outputs)

    async def _answered_later(arguments: dict[str, Any]) -> Any:
        return _answer(await rlm.acall(**arguments), outputs)

    asked = {key: field for key, field in fields.items() if key not in given}
    parameters = [_parameter(key, field) for key, field in asked.items()]
    # Those with a default last, as in any function.
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
    ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ask.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    ask.__name__ = ask.__qualname__ = name
    described = {key: text for key, field in asked.items() if (text := _description(key, field))}
    return RLMTool(ask, name=name, desc=desc or rlm.signature.instructions, arg_desc=described)


def _name_of(signature: type[dspy.Signature]) -> str:
    name = signature.__name__
    if name in ("Signature", "StringSignature"):
        return "ask"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _parameter(name: str, field: Any) -> inspect.Parameter:
    kind: Any = field.annotation
    try:
        pydantic.TypeAdapter(kind).json_schema()
    except Exception:  # data frames, arrays, custom classes: an agent can be told no schema of it
        kind = Any
    default = inspect.Parameter.empty
    if not field.is_required():
        default = field.get_default(call_default_factory=True)
        default = inspect.Parameter.empty if default is PydanticUndefined else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _description(name: str, field: Any) -> str:
    told = str((field.json_schema_extra or {}).get("desc") or "")
    return "" if told == f"${{{name}}}" else told


def _answer(pred: dspy.Prediction, outputs: tuple[str, ...]) -> Any:
    if pred.outcome == "failed":
        raise RuntimeError(f"no answer: {pred.outcome.error or f'the limit {pred.outcome.limit} was reached'}")
    values = {name: pred.get(name) for name in outputs}
    return values[outputs[0]] if len(outputs) == 1 else values
