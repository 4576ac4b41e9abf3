"""`RolePredict`: a ``dspy.Predict`` whose saved state holds only demonstrations of its own role.

Stock optimisers also hand predictors raw training examples as demonstrations (``LabeledFewShot``, and the filling-up of
``BootstrapFewShot``). What of them a role can use is in `rlm_dspy.signatures.answered`; the rest would only carry whole
inputs into saved state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import cloudpickle
import dspy

from rlm_dspy.signatures import answered

# Settings of an LM that may hold a key. DSPy's LMs leave out ``api_key`` alone; gateways take theirs in a header, and
# clouds have settings such as ``aws_secret_access_key``.
_HEADERS = frozenset({"headers", "extra_headers", "default_headers"})
_SECRET = re.compile(r"(?:^|_)(?:key|token|secret|password|credentials?|authorization)(?:_|$)")


class PickledSignature:
    """A signature on its way through pickle.

    Signatures are mostly classes made at run time, which plain ``pickle`` cannot find by name; they are packed by
    value. Copying keeps the class.
    """

    def __init__(self, signature: type[dspy.Signature]) -> None:
        self.signature = signature

    def __deepcopy__(self, memo: dict[int, Any]) -> PickledSignature:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (cloudpickle.dumps(self.signature),)


def _unpickled(data: bytes) -> PickledSignature:
    return PickledSignature(cloudpickle.loads(data))


class PicklableSignature(dspy.Module):
    """A module whose attribute ``signature`` passes through plain ``pickle``."""

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "signature": PickledSignature(self.signature)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "signature": state["signature"].signature})


class _OwnSignature(PickledSignature):
    """A signature of which every deep copy is a class of its own."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _OwnSignature:
        return _OwnSignature(_own(self.signature))


def _own(signature: type[dspy.Signature]) -> type[dspy.Signature]:
    return signature.with_instructions(signature.instructions)


class RolePredict(PicklableSignature, dspy.Predict):
    """A ``dspy.Predict`` for one role of an RLM: ``act``, ``extract``, ``sub``.

    Its signature is a class of its own: ``InferRules`` sets ``signature.instructions``, which on a class that all RLMs
    of a process share would change every one of them, and on a copy the original.

    Attributes:
        answers: Names of the task's outputs, for the two roles that raw examples tell something: ``act``, ``extract``.
        role: What it is in an RLM: ``"act"``, ``"sub"``, ``"extract"``, ``"compact"``, ``"direct"``, ``"predict"`` for
            what code made up, or the name of a typed sub-call. For callbacks and status messages, which are given the
            module that is called.
    """

    role: str = ""
    answers: tuple[str, ...] = ()

    def __init__(
        self, signature: type[dspy.Signature], *, role: str = "", answers: Iterable[str] = (), **config: Any
    ) -> None:
        super().__init__(_own(signature), **config)
        self.role = role
        self.answers = tuple(answers)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "signature": _OwnSignature(self.signature)}

    def fitting_demos(self) -> list[dict[str, Any]]:
        """The demonstrations that have every output and at least one input of this role, less foreign keys.

        Raw examples are among those of ``act`` and ``extract`` as answered tasks.
        """
        fitting = []
        for demo in self.demos:
            fits = answered.own(demo, self.signature)
            if fits is None and self.answers:
                as_task = answered.answered if self.role == "act" else answered.last_words
                fits = as_task(demo, self.answers)
            if fits is not None:
                fitting.append(fits)
        return fitting

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """As ``dspy.Predict.dump_state``, with `fitting_demos` in place of all demonstrations.

        Of the LM all settings stay but headers and those named like a secret, also where a user's program holds the
        RLM and saves its predictors itself; after loading, keys come from the environment or from ``set_lm``.
        """
        predict = self
        fitting = [dspy.Example(**demo) for demo in self.fitting_demos()]
        if fitting != self.demos:
            predict = self.reset_copy()
            predict.demos, predict.lm, predict.traces = fitting, self.lm, self.traces
        state: dict[str, Any] = dspy.Predict.dump_state(predict, json_mode=json_mode)
        if isinstance(lm := state.get("lm"), dict):
            state["lm"] = {name: value for name, value in lm.items() if not may_hold_a_key(name)}
        return state


def may_hold_a_key(setting: str) -> bool:
    """True for the name of an LM's setting that is a key, or holds headers with one."""
    return setting in _HEADERS or _SECRET.search(setting.lower()) is not None
