"""``--config FILE``: options of ``ask`` from a TOML file, below the command line and the environment.

Standard library only, as it is read before DSPy is imported.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlm_dspy.cli.ask_options import DEFAULTS, VARIABLES
from rlm_dspy.redact import redact

ENVIRONMENT_TABLE = "env"
_NOT_IN_FILE = ("help", "words", "config", "env_opt")
_PATHS = ("out", "events")
_PATH_OPTIONS = ("readable", "hidden", "python")
_SECRET = re.compile(r"(^|_)(api_?)?(key|token|secret|password|passwd|credentials?)s?$")
_SCRIPTED = "scripted:"


class ConfigError(Exception):
    """The file cannot be used; the message names it, what is wrong, and the fix."""


def complete(
    parser: argparse.ArgumentParser, options: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> None:
    """Fill in what the command line did not give: from the environment, the file, and the defaults, in this order.

    Args:
        parser: The parser of ``ask``, whose converters are applied to what the file holds.
        options: What it gave; filled in.
        environment: Environment variables; the process's own if None.

    Raises:
        ConfigError: The file cannot be read, or something in it is unknown, of the wrong type, or a secret.
    """
    given = os.environ if environment is None else environment
    # What the file says of its interpreter's options is not for another one that the command line chooses.
    for name, variable in VARIABLES.items():
        if getattr(options, name) is None and given.get(variable):
            setattr(options, name, given[variable])
    values: dict[str, Any] = {}
    table: dict[str, str] = {}
    if options.config is not None:
        values, table = load(parser, options.config)
    chosen = options.interpreter
    if chosen is not None and chosen != values.get("interpreter", DEFAULTS["interpreter"]):
        table = {}
    for name, value in {**DEFAULTS, **values}.items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)
    options.env_opt = [*table.items(), *options.env_opt]


def load(parser: argparse.ArgumentParser, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The options in a file, by the names of their attributes, and those of its ``[env]`` table as text.

    Raises:
        ConfigError: See `complete`.
    """
    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            read = tomllib.load(stream)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not valid TOML: it is not UTF-8") from None
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    home = file.absolute().parent
    actions = {
        action.dest: action for action in parser._actions if action.option_strings and action.dest not in _NOT_IN_FILE
    }
    values: dict[str, Any] = {}
    table: dict[str, str] = {}
    for key, value in read.items():
        name = key.replace("-", "_")
        if name == ENVIRONMENT_TABLE:
            table = _environment(path, home, key, value)
        elif name in actions:
            if name in values:
                raise ConfigError(f"{path}: {key} is there twice, with a dash and with an underscore")
            _no_secret(path, key, value)
            values[name] = _value(path, home, key, value, actions[name])
        else:
            raise ConfigError(_unknown(path, key, list(actions)))
    return values, table


def _unknown(path: str, key: str, known: list[str]) -> str:
    name = key.replace("-", "_").lower()
    if _SECRET.search(name):
        return _secret(path, key)
    if name == "env_opt":
        return f"{path}: options of the sandbox go into a table: [{ENVIRONMENT_TABLE}]"
    if name == "config":
        return f"{path}: {key}: one file does not name another"
    words = [word.replace("_", "-") for word in (*known, ENVIRONMENT_TABLE)]
    close = difflib.get_close_matches(name.replace("_", "-"), words, 3, 0.5)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"Known are {', '.join(words)}"
    return f"{path}: there is no option {key!r}. {hint}"


def _secret(path: str, key: str) -> str:
    return (
        f"{path}: {key} looks like a secret, and a secret does not belong in this file. Remove it, and set the "
        "provider's environment variable instead: export OPENAI_API_KEY=... (ANTHROPIC_API_KEY, ...)"
    )


def _no_secret(path: str, key: str, value: Any) -> None:
    if isinstance(value, str) and redact(value) != value:
        raise ConfigError(_secret(path, f"the value of {key}"))


def _value(path: str, home: Path, key: str, value: Any, action: argparse.Action) -> Any:
    if action.const is True:
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {key} is true or false, not {value!r}")
        # As if not given: what is off by itself needs no switching off.
        return value
    if action.dest == "json" and isinstance(value, bool):
        return "brief" if value else None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(f"{path}: {key} takes {'a number' if action.type else 'text'}, not {value!r}")
    text = str(value)
    if action.type is not None:
        try:
            return action.type(text)  # type: ignore[operator]
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise ConfigError(f"{path}: {key}: {error}") from None
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {key} takes text, not {value!r}")
    if action.dest in _PATHS or (action.dest == "load" and text.endswith(".json")):
        return _path(home, text)
    if text.startswith(_SCRIPTED):
        return _SCRIPTED + _path(home, text.removeprefix(_SCRIPTED))
    return text


def _environment(path: str, home: Path, key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigError(f'{path}: {key} is a table: [{ENVIRONMENT_TABLE}], and below it lines like memory = "2GiB"')
    table: dict[str, str] = {}
    for option, given in value.items():
        where = f"{ENVIRONMENT_TABLE}.{option}"
        name = option.replace("-", "_")
        if _SECRET.search(name.lower()):
            raise ConfigError(_secret(path, where))
        items = given if isinstance(given, list) else [given]
        if not all(isinstance(item, (str, int, float)) for item in items):
            raise ConfigError(f"{path}: {where} takes text, a number, true or false, or a list of text, not {given!r}")
        words = [str(item).lower() if isinstance(item, bool) else str(item) for item in items]
        for word in words:
            _no_secret(path, where, word)
        if name in _PATH_OPTIONS:
            # As text they are separated like those of PATH.
            words = [_path(home, part) for word in words for part in word.split(os.pathsep)]
        table[name] = (os.pathsep if name in _PATH_OPTIONS else ",").join(words)
    return table


def _path(home: Path, text: str) -> str:
    return str(home / Path(text).expanduser())
