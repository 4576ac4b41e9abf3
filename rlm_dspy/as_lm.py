"""An RLM in the place of a language model: ``dspy.configure(lm=rlm.as_lm())``.

Every DSPy module then takes inputs of any size. A request that fits the LM behind it goes there as it is, in one call;
of a longer one the long parts become variables (`rlm_dspy.chat`), and the RLM writes the reply. It is a ``dspy.LM`` on
DSPy's engine surface (`rlm_dspy.lm_engines`), so that it is called, awaited, streamed and traced like any other.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import dspy
from dspy.lm15 import Response, Usage

from rlm_dspy import router
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.lm_engines import AsyncEngine, Backend, Call, Engine, calling, current_call
from rlm_dspy.options import lms_of
from rlm_dspy.signatures import Sub
from rlm_dspy.signatures.predictor import may_hold_a_key
from rlm_dspy.usage import STAND_IN
from rlm_dspy.window import window_of

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM

DIRECT_BELOW = 8_000
"""Tokens below which a request goes straight to the LM, unless the program or the caller says otherwise; of a smaller
window that is known, half of it. Where it does not fit all the same, the LM says so and the RLM takes over."""

_ROOT = ("act", "extract", "extract_child", "compact", "direct")
_SAVED = ("max_output_chars", "on_limit", "prices", "reuse", "adhoc", "compaction", "context_window")


class RecursiveLM(dspy.LM):
    """A ``dspy.LM`` whose replies to long requests are written by an RLM; made by ``rlm.as_lm()``.

    DSPy's response cache is off for it: it knows a request, and not the program, its tools and its limits, on which the
    reply depends as well. The LMs behind it have theirs, so that an equal request costs no tokens again; ``cache=`` and
    ``rollout_id=`` of a call are handed to them. Usage is reported where it arises, by the LMs behind;
    ``dspy.track_usage`` sees it there once, and ``history`` and an explicit ``Request`` get the sum.

    Attributes:
        backend: The frozen program and the LM behind it.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        super().__init__(
            f"{STAND_IN}{backend.lm.model}",
            engine=Engine(backend),
            async_engine=AsyncEngine(backend),
            cache=False,
            num_retries=0,
        )

    @property
    def behind(self) -> tuple[dspy.BaseLM, ...]:
        """The LMs that are asked in its place: they are paid, and have the keys."""
        return self.backend.lm, *self.backend.program.lms()

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """As ``dspy.LM``: texts, or a ``Response`` to an explicit ``Request``."""
        with calling(self._new_call(kwargs)) as call:
            return _summed(super().__call__(prompt, messages=messages, cache=False, **kwargs), call)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """`__call__`, awaited."""
        with calling(self._new_call(kwargs)) as call:
            return _summed(await super().acall(prompt, messages=messages, cache=False, **kwargs), call)

    def _new_call(self, kwargs: dict[str, Any]) -> Call:
        cache = kwargs.pop("cache", None)
        return Call(rollout_id=kwargs.get("rollout_id", self.kwargs.get("rollout_id")), cache=cache)

    def update_history(self, entry: dict[str, Any]) -> None:
        """Record a call, with the usage of all that it took and the predictions of its runs under ``runs``."""
        call = current_call.get()
        if call is not None:
            entry |= {"usage": call.total, "runs": list(call.runs)}
        super().update_history(entry)

    def dump_state(self) -> dict[str, Any]:
        """What `load_state` makes it from again, without keys: prompts and options of the program, and its LMs.

        Tools, an environment and whatever else of the program is code are not saved; ``"lost"`` names them.
        """
        program, backend = self.backend.program, self.backend
        sub_lm = program.sub_lm
        return {
            "_dspy_lm_class": f"{type(self).__module__}.{type(self).__qualname__}",
            "model": self.model,
            "direct_below": backend.direct_below,
            "program": program.dump_state(),
            "options": {
                **program.limits.to_dict(),
                **{name: getattr(program, name) for name in _SAVED},
                "guidance": asdict(program.guidance),
            },
            "lm": _without_keys(backend.lm.dump_state()),
            "sub_lm": None if sub_lm is None else _without_keys(sub_lm.dump_state()),
            "lost": _lost(program),
        }

    @classmethod
    def load_state(cls, state: dict[str, Any], *, allow_custom_lm_class: bool = False) -> RecursiveLM:
        """Make an LM from what `dump_state` gave; keys come from the environment.

        Raises:
            ConfigurationError: Something of the program could not be saved.
        """
        from rlm_dspy.rlm import RLM

        if state["lost"]:
            raise ConfigurationError(
                f"this LM stood for an RLM with {', '.join(state['lost'])}, which a saved state does not hold. Make it "
                "anew with rlm.as_lm(...), and load the state of a program that was saved without it"
            )
        lms = {
            name: None
            if state[name] is None
            else dspy.BaseLM.load_state(state[name], allow_custom_lm_class=allow_custom_lm_class)
            for name in ("lm", "sub_lm")
        }
        rlm = RLM("context -> reply", sub_lm=lms["sub_lm"], **state["options"])
        rlm.load_state(state["program"], allow_unsafe_lm_state=allow_custom_lm_class)
        return as_lm(rlm, lms["lm"], direct_below=state["direct_below"])


def as_lm(
    rlm: RLM,
    lm: dspy.BaseLM | None = None,
    sub_lm: dspy.BaseLM | None = None,
    *,
    direct_below: int | str | None = "program",
    **options: Any,
) -> RecursiveLM:
    """An LM that answers with ``rlm``. Its own signature plays no part; its limits, tools, prompts and environment do.

    Everything is frozen now: what is changed on ``rlm`` later, or configured as ``dspy.settings.lm``, changes nothing.

    Args:
        rlm: The program.
        lm: The LM of short requests and of the root. None takes the one of ``rlm.act``, else ``dspy.settings.lm``.
        sub_lm: The LM of sub-calls; None leaves it to the program, whose default is ``lm``.
        direct_below: Tokens below which a request goes straight to ``lm`` in one call, None for no request. As it is,
            the program's own, and if that has none, `DIRECT_BELOW`.
        **options: As for ``rlm.with_options``.

    Raises:
        ConfigurationError: There is no LM.
        TypeError: ``lm`` or ``sub_lm`` is no LM.
    """
    for name, given in (("lm", lm), ("sub_lm", sub_lm)):
        if given is not None and not isinstance(given, dspy.BaseLM):
            raise TypeError(f"{name} must be an LM such as dspy.LM('openai/NAME'), not {given!r}")
    program = _frozen(rlm.with_options(**options) if options else rlm)
    behind = lm or getattr(program.act, "lm", None) or dspy.settings.lm
    while lm is None and isinstance(behind, RecursiveLM):
        # The second dspy.configure(lm=rlm.as_lm()) of a notebook is not to put one round the other.
        behind = behind.backend.lm
    if behind is None:
        raise ConfigurationError(
            "there is no LM to stand behind the RLM: pass rlm.as_lm(lm=dspy.LM('openai/NAME')), or configure one first "
            "with dspy.configure(lm=...)"
        )
    if not isinstance(behind, dspy.BaseLM):
        raise TypeError(f"the LM must be a dspy.BaseLM, not {type(behind).__name__}: pass rlm.as_lm(lm=dspy.LM(...))")
    for role in _ROOT:
        own = getattr(getattr(program, role, None), "lm", None)
        if own is not None and (lm is not None or own is program.act.lm or isinstance(own, RecursiveLM)):
            getattr(program, role).lm = None
    if sub_lm is not None:
        program.sub_lm = sub_lm
        program.sub.lm = None
    if direct_below == "program":
        window = window_of(behind)
        most = DIRECT_BELOW if window is None else min(DIRECT_BELOW, window // 2)
        direct_below = most if program.direct_below is None else program.direct_below
    router.check(direct_below)
    assert not isinstance(direct_below, str)
    program._check()
    program.check_prices(lms_of(behind), program.max_cost)
    return RecursiveLM(Backend(program, behind, direct_below))


def _frozen(rlm: RLM) -> RLM:
    """A copy whose predictors are copies as well, and still of the same classes, signatures and demonstrations."""
    program = copy.copy(rlm)
    program.callbacks, program.history = list(rlm.callbacks), []
    for name, value in list(vars(program).items()):
        if isinstance(value, dspy.Module):
            setattr(program, name, copy.copy(value))
        elif isinstance(value, dict) and any(isinstance(item, dspy.Module) for item in value.values()):
            setattr(program, name, {key: copy.copy(item) for key, item in value.items()})
    return program


def _summed(result: Any, call: Call) -> Any:
    if not isinstance(result, Response):
        return result
    return replace(result, usage=Usage(input_tokens=call.usage[0], output_tokens=call.usage[1]))


def _without_keys(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not may_hold_a_key(name)}


def _lost(program: RLM) -> list[str]:
    """What of ``program`` is code, or live objects, and in no state."""
    lost = [f"the tool {name}" for name in program.tools]
    lost += ["an environment of its own"] if program._factory is not None else []
    lost += [f"{name.strip('_')}=" for name in ("sub_calls", "_sub_tools", "child") if getattr(program, name)]
    lost += ["models="] if program.routes.lms() else []
    sub = program.sub
    plain = isinstance(sub, dspy.Predict) and {*sub.signature.fields} == {*Sub.fields}
    return lost if plain else [*lost, "sub_signature="]
