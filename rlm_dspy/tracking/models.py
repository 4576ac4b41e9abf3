"""RLMs as MLflow models: `log_model` and `save_model`, which no key and no half-written model comes of.

``mlflow.dspy.load_model`` reads them. MLflow pickles a program with all of DSPy's settings, the LM and its key among
them. Here LMs are pickled without keys, headers and history, wherever in the program or the settings they are, and the
whole is pickled in memory first: what cannot be, or still has a secret in it, is an error before anything is written.
After `rlm_dspy.tracking.enable`, ``mlflow.dspy.log_model`` and ``save_model`` do the same for programs with an RLM.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import dspy
import mlflow
import mlflow.dspy

from rlm_dspy import engine
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.providers import secrets
from rlm_dspy.redact import error_text, hide, secret_in
from rlm_dspy.rlm import RLM
from rlm_dspy.signatures.predictor import may_hold_a_key

__all__ = ["log_model", "save_model"]

_saving: contextvars.ContextVar[bool] = contextvars.ContextVar("rlm_dspy_saving", default=False)
_lock = threading.Lock()
_savers = 0
_DROPPED = ("trace", "usage_tracker", "caller_modules", "caller_predict", "send_stream", "stream_listeners")
_FIX = {
    "tools": "Make it a function that opens what it needs when it is called, such as connections and locks",
    "sub_tools": "Make it a function that opens what it needs when it is called, such as connections and locks",
    "interpreter": "Give interpreter= by name, or as an environment such as environments.docker(...), never running",
    "callbacks": "Give it by dspy.configure(callbacks=[...]) where the model is loaded",
}


def log_model(program: dspy.Module, name: str | None = None, **options: Any) -> Any:
    """Log ``program`` as ``mlflow.dspy.log_model`` does, without any key.

    Args:
        program: An RLM, or a program with RLMs in it.
        name: Of the model.
        **options: Of ``mlflow.dspy.log_model``, such as ``pip_requirements=[...]`` or ``registered_model_name=``. With
            an ``input_example`` MLflow runs the program.

    Returns:
        MLflow's ``ModelInfo``.

    Raises:
        ConfigurationError: Some of it cannot be saved, or has a secret in it; nothing was written.
    """
    return _safely(_original(mlflow.dspy.log_model), program, name=name, **options)


def save_model(program: dspy.Module, path: str, **options: Any) -> None:
    """Save ``program`` into the folder ``path`` as ``mlflow.dspy.save_model`` does, without any key.

    Args:
        program: An RLM, or a program with RLMs in it.
        path: A folder that is not there yet.
        **options: Of ``mlflow.dspy.save_model``.

    Raises:
        ConfigurationError: Some of it cannot be saved, or has a secret in it; nothing was written.
    """
    _safely(_original(mlflow.dspy.save_model), program, path=path, **options)


def guard() -> None:
    """Have MLflow's own functions do the same for programs with an RLM in them."""
    for name in ("log_model", "save_model"):
        theirs = getattr(mlflow.dspy, name)
        if _original(theirs) is theirs:
            setattr(mlflow.dspy, name, _guarded(theirs))


def _original(function: Any) -> Any:
    return getattr(function, "rlm_dspy_original", function)


def _guarded(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        program = args[0] if args else kwargs.get("dspy_model", kwargs.get("model"))
        if _saving.get() or not isinstance(program, dspy.Module) or not _rlms(program):
            return theirs(*args, **kwargs)
        with keyless():
            check(program)
            return theirs(*args, **kwargs)

    guarded.rlm_dspy_original = theirs  # type: ignore[attr-defined]
    return guarded


def _safely(function: Callable[..., Any], program: dspy.Module, **options: Any) -> Any:
    with keyless():
        check(program)
        return function(program, **options)


def _rlms(program: dspy.Module) -> list[RLM]:
    found = [module for module in engine.modules_of(program) if isinstance(module, RLM)]
    children = [rlm.child for rlm in found if rlm.child is not None and rlm.child not in found]
    return found + [rlm for child in children for rlm in _rlms(child)]


@contextlib.contextmanager
def keyless() -> Iterator[None]:
    """Have LMs pickled in this context without keys, headers and what they remember of requests."""
    global _savers
    # By class, because an LM may be anywhere: in a closure, an adapter, a module in a module.
    with _lock:
        _savers += 1
        for kind in _kinds(dspy.BaseLM):
            if kind not in copyreg.dispatch_table:
                copyreg.pickle(kind, _reduced)
    token = _saving.set(True)
    try:
        yield
    finally:
        _saving.reset(token)
        with _lock:
            _savers -= 1
            if not _savers:
                # Another thread may save a model at the same time.
                for kind in [kind for kind, how in copyreg.dispatch_table.items() if how is _reduced]:
                    del copyreg.dispatch_table[kind]


def _kinds(kind: type) -> set[type]:
    found, below = {kind}, list[type](kind.__subclasses__())
    for one in below:
        found |= _kinds(one)
    return found


def _reduced(lm: Any) -> Any:
    made = lm.__reduce_ex__(4)
    if not _saving.get() or not isinstance(made, tuple) or len(made) < 3 or not isinstance(made[2], dict):
        return made  # pickled by somebody else meanwhile, or in a way of its own
    state = dict(made[2])
    if isinstance(state.get("kwargs"), dict):
        state["kwargs"] = {name: value for name, value in state["kwargs"].items() if not may_hold_a_key(name)}
    if "history" in state:
        state["history"] = []
    return (*made[:2], state, *made[3:])


def check(program: dspy.Module) -> None:
    """Raise for what of ``program``, or of DSPy's settings, cannot be saved or has a secret in it."""
    settings = {name: value for name, value in dspy.settings.config.items() if name not in _DROPPED}
    for lm in [*_lms(program), *settings.values()]:
        if isinstance(lm, dspy.BaseLM):
            for secret in secrets(lm):
                hide(secret)
    try:
        if not secret_in(cloudpickle.dumps((program, settings))):
            return
    except Exception as error:
        raise ConfigurationError(_why(program, settings, error)) from error
    where = next((told for told, part in _parts(program, settings) if _holds(part)), "the program")
    raise ConfigurationError(
        f"{where} holds a secret, which would be written into the model. Read it from the environment when it is used"
    )


def _lms(program: dspy.Module) -> list[Any]:
    found = [module.lm for module in engine.modules_of(program) if isinstance(module, dspy.Predict)]
    return found + [lm for rlm in _rlms(program) for lm in rlm.lms()]


def _parts(program: dspy.Module, settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What an error can name, from the smallest."""
    for rlm in reversed(_rlms(program)):
        for option, some in (("tools", rlm._tools), ("sub_tools", rlm._sub_tools or {})):
            for name, tool in some.items():
                yield f"the tool {name!r} ({option}=)", tool
        yield "the interpreter= of the RLM", rlm._factory
        for name, module in rlm.sub_calls.items():
            yield f"sub_calls[{name!r}]", module
        for name in ("child", "sub_lm", "routes", "prices", "callbacks", "signature"):
            yield f"the option {name}= of the RLM", getattr(rlm, name)
    for name, value in vars(program).items():
        if not name.startswith("__"):
            yield f"the attribute {name} of {type(program).__name__}", value
    for name, value in settings.items():
        yield f"the setting {name} of dspy.configure", value


def _holds(part: Any) -> bool:
    try:
        return secret_in(cloudpickle.dumps(part))
    except Exception:
        return False


def _why(program: dspy.Module, settings: dict[str, Any], error: Exception) -> str:
    for where, part in _parts(program, settings):
        try:
            cloudpickle.dumps(part)
        except Exception as own:
            fix = next((fix for option, fix in _FIX.items() if f"{option}=" in where or f" {option} " in where), None)
            return f"{where} cannot be saved ({error_text(own, 300)}). {fix or 'Leave it out, or set it after loading'}"
    return f"the program cannot be saved: {error_text(error, 500)}"
