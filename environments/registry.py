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
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rlm_dspy.environments import places
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError, RLMError
from rlm_dspy.redact import error_text

GROUP = "rlm_dspy.environments"
# Known here as well as in the metadata, because the metadata of an old install in development mode may lack them.
_BUILT_IN = places()


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
    check_options(environment, factory, options)
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise ConfigurationError(f"the {environment!r} environment cannot be made by name: {error}") from None
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
    check_options(name, factory, options)
    hints, _ = _all_options(factory, options)
    return get(name, **{key: _convert(key, text, hints.get(key, str)) for key, text in options.items()})


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
        return _loaded(found)
    raise ConfigurationError(
        f"there is no environment {name!r}.{_meant(name, names())} Known are {', '.join(names())}; a package of your "
        "own adds one with "
        f"an entry point in the group {GROUP!r} (pip install it into this Python)"
    )


def _loaded(entry: importlib.metadata.EntryPoint) -> Callable[..., Any]:
    owner = f"of the package {entry.dist.name!r}" if entry.dist is not None else "of another package"
    where = f"the environment {entry.name!r} {owner} ({entry.value})"
    try:
        factory = entry.load()
    except RLMError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{where} cannot be loaded: {error_text(error, 1000)}") from error
    if inspect.isabstract(factory):
        lacking = ", ".join(sorted(factory.__abstractmethods__))
        raise ConfigurationError(f"{where} is not whole: it lacks {lacking}")
    if not callable(factory):
        raise ConfigurationError(f"{where} is no subclass of rlm_dspy.environments.Environment")
    return typing.cast(Callable[..., Any], factory)


def option_names(environment: str) -> list[str]:
    """The options that `get` takes for an environment, its own ones first.

    Raises:
        ConfigurationError, MissingExtraError: As `get`.
    """
    return list(_options(_load(environment))[0])


def _options(factory: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """The options of a factory with their types, and whether it takes others too.

    A class whose ``__init__`` ends in ``**base: Unpack[BaseOptions]`` also has those of the class above it.
    """
    found: dict[str, Any] = {}
    if not inspect.isclass(factory):
        return found, _add_options(factory, found)
    for above in factory.__mro__:
        if "__init__" in vars(above) and above is not object:
            others = _add_options(vars(above)["__init__"], found)
            if others is not None:
                return found, others
    return found, False


def _add_options(function: Callable[..., Any], found: dict[str, Any]) -> Any:
    """Add a function's parameters; gives whether it takes others, or None where those are the options of another."""
    try:
        hints = typing.get_type_hints(function)
    except NameError:
        hints = {}
    passed_on = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            kind = hints.get(parameter.name, parameter.annotation)
            passed_on = typing.get_origin(kind) is typing.Unpack or str(kind).partition("[")[0].endswith("Unpack")
            if not passed_on:
                return True
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name != "self":
            found.setdefault(parameter.name, hints.get(parameter.name, str))
    return None if passed_on else False


def check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that an environment does not have.

    Raises:
        ConfigurationError: It names the options that there are.
    """
    known, others = _all_options(factory, options)
    if others:
        return
    for option in options:
        if option not in known:
            raise ConfigurationError(
                f"the {name!r} environment has no option {option!r}.{_meant(option, known)} "
                f"Its options are {', '.join(known)}"
            )


def _all_options(factory: Callable[..., Any], options: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """`_options`, with those that it hands on to an environment inside, where ``options`` say which that is."""
    known, others = _options(factory)
    inner = getattr(factory, "inner", None)
    if inner is None or isinstance(options.get("within"), Environment):
        return known, others
    more, others = _options(_load(inner(options)))
    return {**known, **{name: kind for name, kind in more.items() if name not in known}}, others


def _meant(word: str, known: Iterable[str]) -> str:
    """A question behind the name that was probably meant."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


# Not a comma inside one requirement of pip: between its extras, or before a further bound of its version.
_COMMA = re.compile(r",(?![^\[\]]*\])(?!\s*[<>=!~])")
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
        if all(separator for _, separator, _ in pairs):
            return {key: value for key, _, value in pairs}
    elif inspect.isclass(origin) and issubclass(origin, Sequence):
        if any(_is_path(argument) for argument in arguments):
            return [item for item in text.split(os.pathsep) if item]
        return [item for item in _COMMA.split(text) if item]
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
    if inspect.isclass(origin := typing.get_origin(kind)) and issubclass(origin, Mapping):
        return "of the form name=value,name=value"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(kind, getattr(kind, "__name__", str(kind)))
