"""Environments by name: the built-in ones, and those that other packages register.

A package adds an environment with an entry point in the group ``rlm_dspy.environments``, in its ``pyproject.toml``::

    [project.entry-points."rlm_dspy.environments"]
    mine = "my_package.place:Mine"        # a subclass of rlm_dspy.environments.Environment
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError

GROUP = "rlm_dspy.environments"
# Known here as well as in the metadata, because the metadata of an old install in development mode may lack them.
_BUILT_IN = {
    "local": "rlm_dspy.environments.local:Local",
    "subprocess": "rlm_dspy.environments.subprocess_env:Subprocess",
    "inprocess": "rlm_dspy.environments.inprocess:InProcess",
    "ipython": "rlm_dspy.environments.ipython_env:IPython",
    "e2b": "rlm_dspy.environments.e2b:E2B",
    "prime": "rlm_dspy.environments.prime:Prime",
}
_PLANNED = ("docker", "modal", "daytona")


def names() -> list[str]:
    """The names that `get` knows, built-in ones first."""
    return list(dict.fromkeys((*_BUILT_IN, *sorted(entry.name for entry in _entry_points()))))


def get(environment: str | Environment, /, **options: Any) -> Environment:
    """The environment of that name, made with ``options``; an environment is returned as it is.

    Raises:
        ConfigurationError: Unknown name, or options that its class does not take.
        MissingExtraError: It needs a package that is not installed.
    """
    if isinstance(environment, Environment):
        if options:
            raise ConfigurationError("options go with an environment's name; this is an environment already")
        return environment
    factory = _load(environment)
    _check(environment, factory, options)
    made = factory(**options)
    if not isinstance(made, Environment):
        raise ConfigurationError(
            f"the entry point {environment!r} gives a {type(made).__name__}, "
            "which is not an rlm_dspy.environments.Environment"
        )
    return made


def from_options(name: str, options: Mapping[str, str]) -> Environment:
    """As `get`, with options as text, as they come from a command line.

    Each is converted to the type its parameter is annotated with: ``true``/``false``, numbers, ``none``, and for
    sequences any number of items separated by ``:`` (paths) or ``,``.

    Raises:
        ConfigurationError: Also for text that is not of the parameter's type.
    """
    factory = _load(name)
    _check(name, factory, options)
    hints = _hints(factory)
    inner = getattr(factory, "inner", None)
    if inner is not None:
        # Options that it hands on.
        hints = {**_hints(_load(inner(options))), **hints}
    return get(name, **{key: _convert(key, text, hints.get(key, str)) for key, text in options.items()})


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except NameError:
        return {}


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    return list(importlib.metadata.entry_points(group=GROUP))


def _load(name: str) -> Callable[..., Any]:
    if not isinstance(name, str):
        raise ConfigurationError(f"an environment is named by text, not by {type(name).__name__}")
    target = _BUILT_IN.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return typing.cast(Callable[..., Any], getattr(importlib.import_module(module), attribute))
    found = next((entry for entry in _entry_points() if entry.name == name), None)
    if found is not None:
        return typing.cast(Callable[..., Any], found.load())
    if name in _PLANNED:
        raise ConfigurationError(
            f"the {name!r} environment is not part of this version of rlm-dspy, and neither is the extra "
            f"rlm-dspy[{name}]; this version has {', '.join(names())}"
        )
    close = difflib.get_close_matches(name, names(), 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ConfigurationError(
        f"there is no environment {name!r}.{hint} Known are {', '.join(names())}; a package of your own adds one with "
        f"an entry point in the group {GROUP!r} (pip install it into this Python)"
    )


def _check(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(
                f"the {name!r} environment has no option {option!r}.{hint} Its options are {', '.join(known)}"
            )


_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _convert(option: str, text: str, kind: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for choice in sorted(arguments, key=lambda a: a is str):  # text fits everything, so it comes last
            try:
                return _convert(option, text, choice)
            except ConfigurationError:
                continue
        wanted = " or ".join(_word(choice) for choice in arguments)
        raise ConfigurationError(f"option {option!r}: {text!r} is not {wanted}")
    if kind is type(None):
        if text.lower() == "none":
            return None
    elif kind is bool:
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
    elif kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    elif origin is typing.Literal:
        if text in arguments:
            return text
    elif inspect.isclass(origin) and issubclass(origin, Mapping):
        pairs = [item.partition("=") for item in text.split(",") if item]
        return {key: value for key, _, value in pairs}
    elif inspect.isclass(origin) and issubclass(origin, Sequence):
        separator = os.pathsep if any(_is_path(argument) for argument in arguments) else ","
        return [item for item in text.split(separator) if item]
    else:
        return text
    raise ConfigurationError(f"option {option!r}: {text!r} is not {_word(kind)}")


def _is_path(kind: Any) -> bool:
    plain = typing.get_origin(kind) or kind
    return (inspect.isclass(plain) and issubclass(plain, os.PathLike)) or any(map(_is_path, typing.get_args(kind)))


def _word(kind: Any) -> str:
    if kind is type(None):
        return "none"
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(kind)))
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(kind, getattr(kind, "__name__", str(kind)))
