"""The language model that would be used: which, with which key, and whether it answers. Keys are named, never shown."""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from rlm_dspy.doctor.finding import Finding, ok, problem, warning
from rlm_dspy.doctor.text import error_text

MODEL_VARIABLE = "RLM_DSPY_MODEL"
BASE_VARIABLE = "RLM_DSPY_API_BASE"
QUESTION = "Reply with the word ok and nothing else."
_SCRIPTED = "scripted:"
_INSTALL = "pip install 'rlm-dspy[local]'"
_PULL = "rlm-dspy model pull"


def model(name: str | None, api_base: str | None, call: bool, seconds: float) -> Iterator[Finding]:
    """Which model is named, by whom, and whether it answers.

    Args:
        name: As on the command line; None to look further.
        api_base: Base URL of its server, or None.
        call: Whether it may be asked.
        seconds: How long it may take to answer.
    """
    api_base = api_base or os.environ.get(BASE_VARIABLE) or None
    whence = "--model"
    if not name:
        name, whence = os.environ.get(MODEL_VARIABLE), MODEL_VARIABLE
    if not name:
        configured = _configured()
        if configured is None:
            yield _none()
            return
        named, whence, lm = str(getattr(configured, "model", configured)), "dspy.configure", configured
    else:
        named = name
        if name.startswith(_SCRIPTED):
            there = os.path.isfile(name.removeprefix(_SCRIPTED))
            found = f"{name} ({whence}): a script, not a model"
            yield ok("model", found) if there else problem("model", f"{name} ({whence}): there is no such file")
            return
        if name == "local" or name.startswith("local/"):
            yield ok("model", f"{name} ({whence}): the embedded model, see below; it is not started for this")
            return
        try:
            from rlm_dspy.cli.models import models

            lm = models(name, None, api_base)[0]
        except Exception as error:
            yield problem("model", f"{named} ({whence}) cannot be used: {error_text(error)}", *_fix(error, None))
            return
    where = f" at {_without_credentials(api_base)}" if api_base and whence != "dspy.configure" else ""
    found = f"{named}{where} ({whence})"
    keys = _keys(named)
    details = [f"key: {', '.join(keys)}"] if keys else []
    if not call:
        yield ok("model", f"{found}; not asked", details=details)
        return
    yield _ask(lm, found, seconds, details)


def _ask(lm: Any, found: str, seconds: float, details: list[str]) -> Finding:
    outcome: list[Any] = []

    def work() -> None:
        try:
            # Without the cache, which would answer for a server that is down, and without retries, which hide it.
            settings: dict[str, Any] = {"cache": False, "num_retries": 0}
            try:
                asked = lm.copy(**settings, timeout=seconds)
            except ValueError:
                # An LM with an engine of its own takes no such setting; it is left waiting below when time is up.
                asked = lm.copy(**settings)
            outcome.append(asked(QUESTION))
        except BaseException as error:
            outcome.append(error)

    start = time.monotonic()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    took = time.monotonic() - start
    if not outcome or _timed_out(outcome[0]):
        more = f"try again with more time: rlm-dspy doctor --seconds {max(60, round(seconds * 10))}"
        return warning(
            "model", f"{found} did not answer within {seconds:g} s", more, "look at its server", details=details
        )
    answer = outcome[0]
    if isinstance(answer, BaseException):
        fixes = _fix(answer, lm) or ["look at the model's name, the key and the server that the error speaks of"]
        return problem("model", f"{found} does not answer: {error_text(answer)}", *fixes, details=details)
    return ok("model", f"{found} answered in {took:.1f} s", details=details)


def _timed_out(error: Any) -> bool:
    """Whether a limit on time is at the bottom of it; clients wrap that in errors of transport in general."""
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen:
        if isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower():
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _none() -> Finding:
    from rlm_dspy.quickstart import models as at_hand

    # Only loopback is asked, with half a second's patience.
    choice = at_hand.choose({name: value for name, value in os.environ.items() if name != "SCRIPTED"})
    if choice.model is None:
        return warning(
            "model",
            f"none is named, {choice.why.removeprefix('there is ')}",
            _embedded_fix(),
            "export OPENAI_API_KEY=... RLM_DSPY_MODEL=openai/NAME  # or anthropic/NAME",
            "export RLM_DSPY_MODEL=openai/NAME RLM_DSPY_API_BASE=http://127.0.0.1:8000/v1  # a local server",
        )
    base = f" {BASE_VARIABLE}={choice.api_base}" if choice.api_base else ""
    why = choice.why.partition(";")[0]
    use = f"export {MODEL_VARIABLE}={choice.model}{base}"
    return warning("model", f"none is named, but {why}", use, _embedded_fix())


def _embedded_fix() -> str:
    """What is still to be done to use the embedded model."""
    from rlm_dspy.models.catalog import DEFAULT

    steps = [] if importlib.util.find_spec("xllamacpp") else [_INSTALL]
    here = _pulled()
    if not here:
        steps.append(_PULL)
    name = "local" if not here or DEFAULT in here else f"local/{here[0]}"
    return " && ".join([*steps, f"export {MODEL_VARIABLE}={name}  # no provider"])


def _pulled() -> list[str]:
    """The models of the catalog that are here."""
    from rlm_dspy.models import store
    from rlm_dspy.models.catalog import CATALOG

    # os.path, as Path.is_file raises where a folder above may not be searched.
    return [name for name, one in CATALOG.items() if os.path.isfile(store.target(one))]


def _configured() -> Any:
    try:
        import dspy

        return dspy.settings.lm
    except Exception:
        return None


def _keys(name: str) -> list[str]:
    try:
        from rlm_dspy.providers import key_variables

        variables = key_variables(name)
    except Exception:
        return []
    return [f"{variable} is {'set' if os.environ.get(variable) else 'not set'}" for variable in variables]


def _fix(error: BaseException, lm: Any) -> list[str]:
    try:
        from rlm_dspy.providers import diagnose

        found = diagnose(error, lm)
    except Exception:
        return []
    return [found] if found else []


def _without_credentials(url: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    from rlm_dspy.redact import redact

    try:
        parts = urlsplit(url)
        return redact(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))
    except ValueError:
        return "(an address that is none)"


def embedded() -> Iterator[Finding]:
    """Whether the embedded model can be used: its engine is installed, its file is there."""
    from rlm_dspy.models import store
    from rlm_dspy.models.catalog import CATALOG, DEFAULT

    needs = _INSTALL
    try:
        importlib.import_module("xllamacpp")
        engine = ""
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp"
        engine = "its engine is not installed" if missing else f"its engine does not load: {error_text(error)}"
    here = _pulled()
    default = CATALOG[DEFAULT]
    pull = f"{_PULL}  # {(default.size or 0) / 1e6:,.0f} MB, licence {default.license}"
    if here and not engine:
        yield ok("embedded model", f"{', '.join(here)} in {store.root()}; use it with --model local")
    elif engine and "load" in engine:
        yield warning("embedded model", engine, needs)
    elif engine:
        some = f"{', '.join(here)} is there, but {engine}" if here else f"{engine}, and no model was pulled (optional)"
        yield ok("embedded model", some, needs, *([] if here else [pull]))
    else:
        yield ok("embedded model", f"no model was pulled to {store.root()} (optional)", pull)
