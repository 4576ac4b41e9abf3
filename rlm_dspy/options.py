"""The options of an RLM: checked, and in the form that it keeps them in."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec

import dspy

from rlm_dspy import environments, named_types
from rlm_dspy.callbacks import callbacks_of
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.prices import Prices
from rlm_dspy.signatures import Guidance

P = ParamSpec("P")

ELSEWHERE = {
    "max_iterations": "it is max_iters",
    "max_timeout": "it is max_seconds",
    "timeout": "for all turns it is max_seconds, for one execution interpreter=environments.local(timeout=...)",
    "max_budget": "it is max_cost",
    "depth": "it is max_depth",
    "environment": "it is interpreter",
    "lm": "the root's LM is that of dspy.configure(lm=...) or rlm.set_lm(...), that of sub-calls sub_lm=",
}
"""What other libraries call options, or where else they are, and what it is here."""


def unknown_options(given: Iterable[str], options: Iterable[str]) -> str:
    """What is wrong with names that are no option, and the fix.

    Args:
        given: The names.
        options: All that there are.
    """
    options = sorted(options)
    told = []
    for name in sorted(given):
        close = difflib.get_close_matches(name, options, 1, 0.7)
        hint = ELSEWHERE.get(name) or (f"did you mean {close[0]}?" if close else "")
        told.append(f"{name!r} ({hint})" if hint else repr(name))
    return f"unknown options: {', '.join(told)}; the options are {', '.join(options)}"


def explained(constructor: Callable[P, None]) -> Callable[P, None]:
    """``constructor``, whose error about keywords that it does not have says the ones that were meant."""
    names = inspect.signature(constructor).parameters.keys() - {"self"}

    @functools.wraps(constructor)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        if unknown := kwargs.keys() - names:
            raise TypeError(unknown_options(unknown, names - {"signature"}))
        constructor(*args, **kwargs)

    return checked


def read_signature(given: Any, where: str = "") -> type[dspy.Signature]:
    """A signature class as it is, or the one that a text is.

    Args:
        given: It.
        where: The option that it is of, such as ``"sub_calls['classify']"``; the program's own if empty.

    Raises:
        ConfigurationError: The text cannot be read.
        TypeError: It is something else.
    """
    if isinstance(given, type) and issubclass(given, dspy.Signature):
        return given
    if not isinstance(given, str):
        form = "a text such as 'context, query -> answer: str' or a dspy.Signature class"
        if where.startswith("sub_calls"):
            form = "a text such as 'text -> label', a dspy.Signature class or a dspy.Module"
            if callable(given):
                form += "; a function of your own goes into tools=[...]"
        raise TypeError(f"{where or 'signature'} must be {form}, not {given!r}")
    try:
        return named_types.read(given)
    except (SyntaxError, ValueError, TypeError) as error:
        raise unreadable(given, f" of {where}" if where else "", error) from error


def unreadable(signature: Any, where: str, error: Exception) -> ConfigurationError:
    """What to raise where DSPy could make no signature of ``signature``.

    Args:
        signature: As it was given.
        where: Whose it is, such as ``" of sub_signature"``; empty for the program's own.
        error: What DSPy raised.
    """
    if isinstance(error, TypeError):
        # DSPy looks these up on its class, and finds the field.
        why = "fields, input_fields, instructions, model_config, output_fields, signature cannot be names of fields"
        return ConfigurationError(f"the signature {signature!r}{where} cannot be read ({error}): {why}; rename them")
    form = "It has the form 'context, query -> answer: str'; for types of your own write a dspy.Signature class"
    return ConfigurationError(f"the signature {signature!r}{where} cannot be read: {str(error).rstrip('.')}. {form}")


def named(sub_calls: Any) -> list[tuple[str, Any]]:
    """The option ``sub_calls`` as pairs.

    Raises:
        TypeError: It is no mapping.
    """
    if sub_calls is None:
        return []
    if not isinstance(sub_calls, Mapping):
        raise TypeError(
            "sub_calls maps names to signatures or modules, as in sub_calls={'classify': 'text -> label'}, "
            f"not {type(sub_calls).__name__}"
        )
    return list(sub_calls.items())


def factory(
    interpreter: str | Environment | Callable[[], Any] | None, interpreter_factory: Callable[[], Any] | None
) -> Callable[[], Any] | None:
    """What makes interpreters, from the two options for it; None if neither is given.

    Raises:
        ConfigurationError: Both are given, or there is no environment of that name.
        TypeError: It is no name and cannot be called, or is an interpreter itself.
    """
    if interpreter is not None and interpreter_factory is not None:
        raise ConfigurationError("give interpreter= or interpreter_factory=, not both: they are the same thing")
    chosen = interpreter if interpreter is not None else interpreter_factory
    if chosen is None:
        return None
    if isinstance(chosen, str):
        return environments.get(chosen)
    if not isinstance(chosen, type) and isinstance(chosen, dspy.CodeInterpreter):
        raise TypeError(
            "interpreter takes something that creates interpreters, and got an interpreter; every run needs its own. "
            f"Pass lambda: {type(chosen).__name__}(...)"
        )
    if not callable(chosen):
        raise TypeError(
            "interpreter must be an environment's name, an environment, or a zero-argument callable, "
            f"not {type(chosen).__name__}"
        )
    return chosen


def guidance_of(given: Guidance | bool | Mapping[str, bool]) -> Guidance:
    """The option ``guidance`` in full.

    Raises:
        ConfigurationError: It names an aid that there is not.
    """
    try:
        return Guidance.of(given)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def prices_of(given: Any) -> dict[str, Any]:
    """The option ``prices``, checked; see `rlm_dspy.prices.Prices` for what it raises."""
    Prices(given)
    return dict(given or {})


PREPARED: dict[str, Callable[[Any], Any]] = {
    "guidance": guidance_of,
    "prices": prices_of,
    "callbacks": callbacks_of,
}
"""Options whose values are checked and put into form, and how."""


def model_name(lm: Any) -> str:
    """What ``lm`` is called."""
    return str(getattr(lm, "model", type(lm).__name__))


def lms_of(lm: Any) -> list[Any]:
    """``lm`` alone; or the LMs behind one that says that it only stands in for them, in its attribute ``behind``."""
    behind = getattr(lm, "behind", None)
    return list(behind) if isinstance(behind, tuple) else [lm]
