"""The program that is trained, and putting it on the seats of a rollout.

It is named by its import path or described by a signature and the options of `rlm_dspy.RLM`, and made once an
environment (`Programs`). For each rollout a view of it is made, whose LMs are those of the seats, and no others: what a
program says of LMs of its own is left out, because a call that does not reach the endpoint is trained by nobody.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import dspy

from rlm_dspy import environments
from rlm_dspy._aio import threads
from rlm_dspy.engine import modules_of, predictors_of
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.rlm import RLM
from rlm_dspy.routing import Routes

__all__ = ["Programs", "called", "made", "seated"]

KEPT = 64
"""Programs that an environment keeps: one for each signature of its tasks."""


class Programs:
    """The programs of an environment, which all of its rollouts share.

    To make one takes milliseconds, in which the event loop of all rollouts stands still, and its classes are garbage
    that only a full collection finds: so it is made for the first rollout and kept.

    Args:
        size: Most that are kept; those that were used longest ago go first.
    """

    def __init__(self, size: int = KEPT) -> None:
        self._kept: OrderedDict[Hashable, dspy.Module] = OrderedDict()
        self._lock = threading.Lock()
        self._size = size

    def get(self, key: Hashable, make: Callable[[], dspy.Module]) -> dspy.Module:
        """The program of this key, made if it is not there."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return self._kept[key]


def made(
    path: str | None,
    signature: str | type[dspy.Signature],
    options: Mapping[str, Any],
    environment: str | None,
    environment_options: Mapping[str, Any],
) -> dspy.Module:
    """The program, without any LM of its own.

    Args:
        path: ``"package.module:name"`` of a module object or of a function that makes one; such a function may take
            the ``signature``. None for an `rlm_dspy.RLM` of the signature.
        signature: Of the task.
        options: Of `rlm_dspy.RLM`, or of its ``with_options`` where `path` is given.
        environment: Where code runs, by name; None for what the program says, else ``"local"``.
        environment_options: Of it.

    Raises:
        ConfigurationError: There is no such program, or it does not take these options.
    """
    given = dict(options)
    if environment is not None:
        given["interpreter"] = environments.get(environment, **dict(environment_options))
    elif environment_options:
        raise ConfigurationError("environment_options go with an environment: environment = 'local'")
    if path is None:
        try:
            return RLM(signature, **given)
        except TypeError as error:
            raise ConfigurationError(f"RLM does not take these options: {error}") from error
    program: Any = _without_lms(_found(path, signature))
    if given and not isinstance(program, RLM):
        raise ConfigurationError(
            f"{path} is a {type(program).__name__}: options and environment are those of an RLM. Set them where the "
            "program is made"
        )
    return program.with_options(**given) if given else program


def _found(path: str, signature: str | type[dspy.Signature]) -> dspy.Module:
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(f"the program is named as 'package.module:name', not as {path!r}")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(f"the program {path!r} cannot be imported: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"there is no {name!r} in {module}, which the program {path!r} names")
        found = getattr(found, part)
    if not isinstance(found, dspy.Module) and callable(found):
        # Of a module's class, because DSPy's own way to make one says nothing of it.
        maker = vars(found).get("__init__", found) if isinstance(found, type) else found
        takes = "signature" in inspect.signature(maker).parameters
        found = found(signature=signature) if takes else found()
    if not isinstance(found, dspy.Module):
        raise ConfigurationError(f"{path} must be a dspy.Module or a function that makes one, not {found!r}")
    return found


def _without_lms(program: dspy.Module) -> dspy.Module:
    """A copy whose predictors and RLMs leave their LM to the settings; that of the caller stays as it is."""
    program = program.deepcopy()
    for predictor in predictors_of(program):
        predictor.lm = None
    for module in modules_of(program):
        if isinstance(module, RLM):
            module.sub_lm = None
    return program


def seated(program: dspy.Module, sub: dspy.BaseLM, child: dspy.BaseLM) -> dspy.Module:
    """``program`` for one rollout. The LM of its root is that of the settings it is called under.

    Args:
        program: As `made`; it is left as it is.
        sub: Answers sub-calls, at every depth and by every name.
        child: Plays the roots of children.
    """
    if isinstance(program, RLM) and not any(isinstance(module, RLM) for module in modules_of(program)[1:]):
        return program.with_options(**_lms_of(program, sub, child), on_limit="raise")
    program = program.deepcopy()
    rlms = [module for module in modules_of(program) if isinstance(module, RLM)]
    inner = {id(part) for rlm in rlms for part in modules_of(rlm) if part is not rlm}
    for rlm in rlms:
        lms = _lms_of(rlm, sub, child)
        rlm.sub_lm = sub
        rlm.routes = Routes(lms["models"], lms["models_by_depth"])
        if id(rlm) in inner:
            for role in ("act", "extract", "extract_child", "compact", "direct"):
                if (predictor := getattr(rlm, role, None)) is not None:
                    predictor.lm = child
    if isinstance(program, RLM):
        program.on_limit = "raise"
    return program


def _lms_of(rlm: RLM, sub: dspy.BaseLM, child: dspy.BaseLM) -> dict[str, Any]:
    by_depth = {1: {"root": child, "sub": sub}} if rlm.max_depth > 1 else {}
    return {"sub_lm": sub, "models": dict.fromkeys(rlm.routes.models, sub), "models_by_depth": by_depth}


async def called(program: dspy.Module, inputs: Mapping[str, Any]) -> dspy.Prediction:
    """Call the program without blocking the event loop: in a thread where it cannot be awaited."""
    if hasattr(program, "aforward"):
        prediction: dspy.Prediction = await program.acall(**inputs)
        return prediction
    return await threads.run(program, **inputs)
