"""The functions of the host that the REPL's code can call, made fresh for each run.

Every call goes through the ledger and the event log here, whatever it is. A failure of one prompt in a batch comes
back in its slot as a `FailedCall`, a string that begins with ``[ERROR]``; all others are raised in the code.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy import _compat, tools
from rlm_dspy import events as ev
from rlm_dspy._aio import caught
from rlm_dspy.calls import call
from rlm_dspy.environments.base import HostFunction
from rlm_dspy.environments.codec import FailedCall
from rlm_dspy.errors import CallFailed
from rlm_dspy.inputs import repr_fits, short_repr
from rlm_dspy.ledger import CallRefused
from rlm_dspy.redact import error_text
from rlm_dspy.render import one_line
from rlm_dspy.signatures import PlainTextAdapter
from rlm_dspy.signatures.contract import FunctionInfo
from rlm_dspy.streaming import run_in_thread

if TYPE_CHECKING:
    from rlm_dspy.run import Run

LLM_QUERY = FunctionInfo(
    "llm_query(prompt: str) -> str",
    "ask the sub-LM; it sees the prompt and nothing else",
)
LLM_QUERY_BATCHED = FunctionInfo(
    "llm_query_batched(prompts: list[str]) -> list[str]",
    "ask about many prompts at once; the answers in their order, and one that failed says so",
)
SHOW_VARS = FunctionInfo("SHOW_VARS() -> dict[str, str]", "the variables that exist, with their types")
BUDGET = FunctionInfo("budget() -> dict[str, float | None]", "what is left of the limits")


class HostFunctions:
    """The host functions of one run.

    Args:
        run: The run they belong to.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._numbers = itertools.count(1)
        self._width = asyncio.Semaphore(run.limits.max_concurrency)
        self._adapter = PlainTextAdapter(dspy.settings.adapter)
        self._sub_agents: _compat.SubAgents | None = None
        self._roles: tuple[Any, ...] = ()
        self._given = self._wanted = ""
        self._plain = False

    def all(self) -> dict[str, HostFunction]:
        """Name to function, as `rlm_dspy.environments.base.Session.run` takes them."""
        taken = {*self._run.inputs, *self._run.tools}
        functions: dict[str, HostFunction] = {"llm_query": self.llm_query, "llm_query_batched": self.llm_query_batched}
        if "budget" not in taken:
            functions["budget"] = self.budget
        for name, tool in self._run.tools.items():
            functions[name] = functools.partial(self._tool, name, tool)
        if self._sub_agents is not None:
            for name, function in self._sub_agents.tools.items():
                functions[name] = functools.partial(self._blocking, name, function)
        return functions

    def infos(self) -> tuple[FunctionInfo, ...]:
        """What the contract says of them."""
        taken = {*self._run.inputs, *self._run.tools}
        helpers = [info for info in (SHOW_VARS, BUDGET) if info.call.split("(")[0] not in taken]
        return (LLM_QUERY, LLM_QUERY_BATCHED, *map(tools.describe, self._run.tools.values()), *helpers)

    async def llm_query(self, prompt: str, model: str | None = None) -> str:
        """One text to the sub-LM, its reply back."""
        self._check_model(model)
        _check_prompt(prompt)
        self._run.ledger.reserve_calls(1)
        return await self._query("llm_query", prompt)

    async def llm_query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Many texts at once; replies in their order."""
        self._check_model(model)
        if isinstance(prompts, str) or not isinstance(prompts, (list, tuple)):
            raise TypeError("llm_query_batched takes a list of prompts; for one prompt use llm_query(prompt)")
        for prompt in prompts:
            _check_prompt(prompt)
        self._run.ledger.reserve_calls(len(prompts))
        waiting = len(prompts)

        async def slot(prompt: str) -> str:
            nonlocal waiting
            waiting -= 1
            return await self._slot(prompt)

        try:
            results = await asyncio.gather(*(caught(slot(prompt)) for prompt in prompts))
        finally:
            # Cancelled before they began, they never gave their reservation back.
            for _ in range(waiting):
                self._run.ledger.settle_call(made=False)
        replies: list[Any] = []
        for reply, fatal in results:
            if fatal is not None:
                raise fatal
            replies.append(reply)
        return replies

    async def budget(self) -> dict[str, Any]:
        """What is left of the run's limits."""
        return self._run.ledger.left()

    async def _slot(self, prompt: str) -> str:
        try:
            return await self._query("llm_query_batched", prompt)
        except Exception as error:
            text = str(error) if isinstance(error, CallFailed) else error_text(error)
            return FailedCall(f"[ERROR] {text}")

    async def _query(self, name: str, prompt: str) -> str:
        """Make one sub-call that has been reserved already."""
        run, made = self._run, False
        try:
            async with self._width:
                made = True
                with run.ledger.in_flight():
                    result = await self._recorded(name, one_line(prompt), lambda: self._ask(prompt))
        finally:
            run.ledger.settle_call(made=made)
        return result

    async def _ask(self, prompt: str) -> str:
        sub, predictors = self._run.program.sub, self._sub_predictors()
        first, last = predictors[0].signature, predictors[-1].signature
        if self._roles != (first, last, sub):
            # DSPy collects a signature's fields anew each time it is asked for them.
            self._given, self._wanted = next(iter(first.input_fields)), [*last.output_fields][-1]
            self._plain = sub is predictors[0] and PlainTextAdapter.fits(first)
            self._roles = first, last, sub
        lm = self._run.program.sub_lm if self._own_sub_lm() is None else None
        prediction = await call(sub, self._adapter if self._plain else None, lm, **{self._given: prompt})
        return str(prediction[self._wanted])

    def _sub_predictors(self) -> list[dspy.Predict]:
        """``sub``, or what the module in its place is made of: the first is asked, the last one's output told."""
        sub = self._run.program.sub
        return [sub] if isinstance(sub, dspy.Predict) else sub.predictors()

    def _own_sub_lm(self) -> Any:
        """The LM that ``sub`` itself has been given, or None."""
        return next((predictor.lm for predictor in self._sub_predictors() if predictor.lm is not None), None)

    async def _tool(self, name: str, tool: dspy.Tool, /, *args: Any, **kwargs: Any) -> Any:
        self._run.ledger.count_tool_call()
        preview = ", ".join([*map(repr_short, args), *(f"{k}={repr_short(v)}" for k, v in kwargs.items())])
        return await self._recorded(name, one_line(preview), lambda: tools.invoke(tool, args, kwargs))

    async def _blocking(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self._recorded(name.strip("_"), "", lambda: run_in_thread(function, *args, **kwargs))

    async def _recorded(self, name: str, preview: str, work: Callable[[], Awaitable[Any]]) -> Any:
        run, number = self._run, next(self._numbers)
        turn, started = run.turn, time.monotonic()
        run.events.emit(ev.CallStarted(turn=turn, call=number, name=name, preview=preview))
        error: str | None = None
        shown = ""
        try:
            result = await work()
            shown = one_line(result) if isinstance(result, str) else ""
            return result
        except Exception as raised:
            error = error_text(raised)
            # What the code sees of a host error is its redacted text; the error itself may hold keys and requests.
            raise CallFailed(error) from raised
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            seconds = round(time.monotonic() - started, 6)
            run.events.emit(
                ev.CallEnded(turn=turn, call=number, name=name, seconds=seconds, error=error, preview=shown)
            )

    def _check_model(self, model: str | None) -> None:
        if model is not None:
            raise ValueError(f"no model named {model!r}: there is one sub-LM, call llm_query(prompt) without model=")

    async def install_sub_agents(self) -> None:
        """Make ``import dspy`` in the REPL give DSPy's stand-in, whose predictors run on the host."""
        run = self._run
        if self._sub_agents is not None or "dspy" in run.inputs:
            return
        lm = self._own_sub_lm() or run.program.sub_lm
        self._sub_agents = _compat.SubAgents(run.tools, run.factory, lm, self._reserve_now)
        await run.session.set(self._sub_agents.variables)
        result = await run.session.run(self._sub_agents.code, self.all())
        if result.error is not None:
            run.events.emit(ev.Note(message=f"import dspy is not available in this session: {result.error.message}"))

    def forget_sub_agents(self) -> None:
        """The session is a new one; the stand-in has to be installed again."""
        self._sub_agents = None

    def _reserve_now(self, count: int) -> None:
        """Sub-agents call their LMs themselves: what they reserve is spent at once."""
        try:
            self._run.ledger.reserve_calls(count)
        except CallRefused as refused:
            raise RuntimeError(str(refused)) from None
        for _ in range(count):
            self._run.ledger.settle_call()


def _check_prompt(prompt: Any) -> None:
    if not isinstance(prompt, str):
        raise TypeError(f"a prompt must be a str, not {type(prompt).__name__}; build one text with an f-string or join")
    if not prompt.strip():
        raise ValueError("a prompt must not be empty")


def repr_short(value: Any) -> str:
    """A short ``repr`` that never builds a long one first."""
    if isinstance(value, (str, bytes)) and len(value) > 60:
        return f"{value[:50]!r}…"
    if isinstance(value, (list, tuple, dict, set, Mapping)) and len(value) > 8:
        return f"{type(value).__name__} of {len(value):,}"
    return one_line(repr(value) if repr_fits(value, 1_000) else short_repr(value), 60)
