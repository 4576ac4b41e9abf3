"""The user's tools: checked at construction, documented with their full types, called positionally or by keyword."""

from __future__ import annotations

import inspect
import keyword
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dspy

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.inputs import short_repr
from rlm_dspy.render import one_line
from rlm_dspy.signatures.contract import FunctionInfo
from rlm_dspy.streaming import run_in_thread
from rlm_dspy.submit import type_text

CORE_NAMES = frozenset({"llm_query", "llm_query_batched", "SUBMIT", "SHOW_VARS", "print"})
"""Names in the REPL that no input, tool or sub-call may have; all others of ours give way to the user's."""

CALL_NAMES = frozenset({"self", "instance"})
"""Names that DSPy's own ``Module.__call__`` cannot take as keywords."""

PREDICT_NAMES = frozenset({"config", "demos", "lm", "new_signature", "signature"})
"""Keywords that DSPy's predictors take for themselves, so that no input of theirs can have these names."""

RESULT_NAMES = frozenset({"trajectory", "final_reasoning", "outcome", "usage"})
"""Fields of the result that no output may have."""


def normalize(tools: Iterable[Callable[..., Any] | dspy.Tool] | None) -> dict[str, dspy.Tool]:
    """Tools by name.

    Raises:
        TypeError: A dict was given, or something that is not callable.
        ConfigurationError: A name is invalid, reserved or taken twice.
    """
    if tools is None or tools == {}:
        return {}
    if isinstance(tools, Mapping):
        raise TypeError("tools must be a list: write tools=[f, g], or tools=[dspy.Tool(f, name='g')] to rename one")
    if callable(tools) or isinstance(tools, dspy.Tool):
        raise TypeError("tools must be a list: write tools=[f] for a single tool")
    normalized: dict[str, dspy.Tool] = {}
    for item in tools:
        if not isinstance(item, dspy.Tool) and not callable(item):
            raise TypeError(f"a tool must be callable or a dspy.Tool, not {type(item).__name__}")
        tool = item if isinstance(item, dspy.Tool) else dspy.Tool(item)
        name = str(tool.name)
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ConfigurationError(f"tool name {name!r} is not a Python identifier; pass dspy.Tool(f, name='...')")
        if name in CORE_NAMES or is_reserved(name):
            raise ConfigurationError(f"tool name {name!r} is reserved in the REPL; pass dspy.Tool(f, name='...')")
        if name in normalized:
            raise ConfigurationError(f"two tools are named {name!r}; pass dspy.Tool(f, name='...') for one of them")
        normalized[name] = tool
    return normalized


def is_reserved(name: str) -> bool:
    """True for names that ``import dspy`` in the REPL needs for itself."""
    return name == "dspy" or name.startswith(("_dspy", "__dspy"))


def check_names(
    signature: type[dspy.Signature], tools: Mapping[str, dspy.Tool], sub_calls: Mapping[str, Any] | None = None
) -> None:
    """Refuse names of inputs, outputs and sub-calls that collide with the REPL, the result, or one another.

    Raises:
        ConfigurationError: Naming all that collide.
    """
    inputs, outputs = set(signature.input_fields), set(signature.output_fields)
    if "interpreter_factory" in inputs:
        raise ConfigurationError("the input name 'interpreter_factory' is the call's own option; rename the input")
    bad = sorted(name for name in inputs | outputs if not name.isidentifier() or keyword.iskeyword(name))
    if bad:
        raise ConfigurationError(f"{bad} cannot be names in Python code; rename them in the signature")
    uncallable = sorted(inputs & CALL_NAMES) + sorted(outputs & {"self"})
    if uncallable:
        raise ConfigurationError(f"names {uncallable} are taken by the call itself; rename them in the signature")
    taken = sorted(name for name in inputs if name in CORE_NAMES or is_reserved(name))
    if taken:
        raise ConfigurationError(f"input names {taken} are reserved in the REPL; rename them in the signature")
    both = sorted(inputs & tools.keys())
    if both:
        raise ConfigurationError(f"{both} are both inputs and tools; rename one of each")
    named = {name for call in sub_calls or () for name in (call, f"{call}_batched")}
    if twins := sorted(name for name in sub_calls or () if f"{name}_batched" in (sub_calls or ())):
        raise ConfigurationError(f"{twins[0]}_batched is the twin that {twins[0]!r} has anyway; rename it in sub_calls")
    for name, module in (sub_calls or {}).items():
        check_inputs(f"sub_calls[{name!r}]", module)
    wrong = sorted(
        repr(name)
        for name in sub_calls or ()
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_")
    )
    if wrong:
        raise ConfigurationError(f"{', '.join(wrong)} cannot be names of functions; rename them in sub_calls")
    taken = sorted(name for name in named if name in CORE_NAMES or is_reserved(name))
    if taken:
        raise ConfigurationError(f"names {taken} are reserved in the REPL; rename them in sub_calls")
    for what, names in (("inputs", inputs), ("tools", set(tools))):
        if both := sorted(named & names):
            raise ConfigurationError(f"{both} are both functions of sub_calls and {what}; rename one of each")
    clash = sorted(outputs & RESULT_NAMES)
    if clash:
        raise ConfigurationError(f"output names {clash} are fields of every result; rename them in the signature")
    if not outputs:
        raise ConfigurationError("the signature has no output field; write for example 'context, query -> answer'")


def check_inputs(where: str, module: Any) -> None:
    """Refuse names of inputs that a predictor cannot be given.

    Raises:
        ConfigurationError: Naming them.
    """
    if isinstance(module, dspy.Predict) and (taken := sorted(PREDICT_NAMES & module.signature.input_fields.keys())):
        raise ConfigurationError(f"input names {taken} of {where} are keywords of DSPy's predictors; rename them")


def describe(tool: dspy.Tool) -> FunctionInfo:
    """The tool's call with parameter types, defaults and return type, and its description."""
    try:
        signature = inspect.signature(tool.func)
        function = tool.func if inspect.isroutine(tool.func) else tool.func.__call__
        hints: dict[str, Any]
        try:
            hints = typing.get_type_hints(function)
        except (NameError, AttributeError, SyntaxError):
            # Written as text and not importable from there: shown as it was written.
            hints = dict(getattr(function, "__annotations__", {}))
    except (TypeError, ValueError, AttributeError):
        parameters = ", ".join(
            f"{name}: {schema.get('type', 'Any')}" + (f" = {schema['default']!r}" if "default" in schema else "")
            for name, schema in (tool.args or {}).items()
        )
        return FunctionInfo(f"{tool.name}({parameters})", _doc(tool))
    shown = []
    for parameter in signature.parameters.values():
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        star = "**" if parameter.kind is parameter.VAR_KEYWORD else star
        text = star + parameter.name
        if parameter.name in hints:
            text += f": {type_text(hints[parameter.name])}"
        if parameter.default is not parameter.empty:
            text += f" = {one_line(short_repr(parameter.default))}"
        shown.append(text)
    returns = f" -> {type_text(hints['return'])}" if "return" in hints else ""
    return FunctionInfo(f"{tool.name}({', '.join(shown)}){returns}", _doc(tool))


def _doc(tool: dspy.Tool) -> str:
    described = [
        f"{name}: {schema['description']}" for name, schema in (tool.args or {}).items() if schema.get("description")
    ]
    return " ".join([str(tool.desc or "").strip(), *described]).strip()


async def invoke(tool: dspy.Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``tool`` as the REPL's code did, through ``dspy.Tool`` (validation, callbacks).

    A synchronous tool runs in a thread of its own, an asynchronous one on the event loop.
    """
    direct, names = _parameters(tool)
    if direct and args:
        # dspy.Tool takes keywords only; what cannot be one can reach the function only directly.
        if _is_async(tool):
            return await tool.func(*args, **kwargs)
        return await run_in_thread(tool.func, *args, **kwargs)
    if len(args) > len(names):
        raise TypeError(f"{tool.name}() takes {len(names)} positional arguments but {len(args)} were given")
    bound = dict(zip(names, args, strict=False))
    twice = sorted(bound.keys() & kwargs.keys())
    if twice:
        raise TypeError(f"{tool.name}() got multiple values for argument {twice[0]!r}")
    bound.update(kwargs)
    if _is_async(tool):
        return await tool.acall(**bound)
    result = await run_in_thread(_call, tool, bound)
    return await result if inspect.isawaitable(result) else result


def _call(tool: dspy.Tool, bound: dict[str, Any]) -> Any:
    return tool(**bound)


def _is_async(tool: dspy.Tool) -> bool:
    called = getattr(tool.func, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
    return inspect.iscoroutinefunction(tool.func) or inspect.iscoroutinefunction(called)


def _parameters(tool: dspy.Tool) -> tuple[bool, list[str]]:
    try:
        parameters = inspect.signature(tool.func).parameters.values()
    except (TypeError, ValueError):
        return False, list(tool.args or {})
    starred = {p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    declared = [name for name in tool.args or {} if name not in starred]
    if declared and len(starred) == len(parameters):
        # Wrappers such as MCP tools take **kwargs and declare their arguments beside it.
        return False, declared
    direct = any(p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in parameters)
    return direct, [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
