"""The harness of verifiers (1.0 API): a rollout is one call of the program, in this process.

Every language model call of the program goes to the rollout's endpoint; its code runs in a session of an environment of
`rlm_dspy.environments`, by default the confined local one. Under `rlm_dspy.training.RLMEnv` sub-calls and children have
seats of their own; under any other environment of verifiers all calls are the one seat's.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import dspy
import verifiers.v1 as vf
from pydantic import Field, model_validator

from rlm_dspy.training import programs
from rlm_dspy.training.cases import DEFAULT_SIGNATURE, Case, case_of
from rlm_dspy.training.endpoint import Address, Switchboard
from rlm_dspy.training.hiding import hiding, sources
from rlm_dspy.training.outcomes import Result, play
from rlm_dspy.training.seats import current_desk, current_loan

__all__ = ["INFO", "RLMHarness", "RLMHarnessConfig"]

INFO = "rlm"
"""The entry of ``trace.info`` that says what came of the call."""


class RLMHarnessConfig(vf.HarnessConfig):
    """Which program, and where its code runs. Checked when a configuration is read, not when the first rollout starts.

    Attributes:
        program: ``"package.module:name"`` of a module or of a function that makes one; None for an RLM made here.
        signature: Of that RLM, in place of the task's own.
        options: Its options, as `rlm_dspy.RLM` has them; of a named program, those of ``with_options``.
        environment: Where code runs, by name: ``"local"``, ``"docker"``, ...
        environment_options: Of it. Where code runs in the local environment, the files that the classes of the task are
            written in are hidden from it, unless ``hidden`` says otherwise.
    """

    id: str = "rlm-dspy-harness"
    program: str | None = None
    signature: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    environment: str | None = None
    environment_options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _makes_a_program(self) -> RLMHarnessConfig:
        if self.program is None:
            self.make(self.signature or DEFAULT_SIGNATURE)
        return self

    def make(self, signature: str | type[dspy.Signature]) -> dspy.Module:
        """The program for a task of this signature.

        Raises:
            ConfigurationError: There is none of that name, or it does not take these options.
        """
        wanted = self.signature or signature
        return programs.made(self.program, wanted, self.options, self.environment, self.environment_options)


class RLMHarness(vf.Harness[RLMHarnessConfig]):
    """One call of the program is one rollout."""

    APPENDS_SYSTEM_PROMPT = True
    # Code of the model runs in the program's own sandbox, and never in the runtime of verifiers.
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    def __init__(self, config: RLMHarnessConfig) -> None:
        super().__init__(config)
        # verifiers makes a harness for each rollout; those of our own environment share its programs.
        self._programs = programs.Programs()

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> vf.ProgramResult:
        """Play the rollout. Called by verifiers.

        Raises:
            Exception: What is no fault of the policy; verifiers records it as the rollout's error.
        """
        own = Address(ctx.model, endpoint, secret)
        loan = current_loan.get()
        if loan is not None:
            await loan.serve(own)
            return _done("")
        case = await case_of(data)
        program = self._program(case, data)
        async with _borrowing() as (borrow, children), Switchboard() as board:
            names = {"agent": "agent", "sub": "sub", "child": children} if borrow else dict.fromkeys(_ROLES, "agent")
            seats = {role: board.seat(name, _opening(borrow, name, own)) for role, name in names.items()}
            agent, sub, child = (seats[role].lm(ctx.model) for role in _ROLES)
            adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
            with dspy.context(lm=agent, adapter=adapter, disable_history=True, send_stream=None, trace=None):
                on_seats = programs.seated(program, sub, child)
                result = await play(on_seats, case.inputs, board, lambda: seats["agent"].stopped)
            trace.info[INFO] = _told(result, board, case)
        reply = _text(result)
        trace.root_reply = reply
        return _done(reply)

    def _program(self, case: Case, data: Any) -> dspy.Module:
        desk, system_prompt = current_desk.get(), data.system_prompt
        kept = self._programs if desk is None else desk.programs
        hidden = sources(data) if desk is None else (*sources(data), *desk.hidden)

        def make() -> dspy.Module:
            signature: Any = case.signature
            if system_prompt is not None:
                signature = dspy.Signature(case.signature, system_prompt)
            return hiding(self.config.make(signature), hidden)

        return kept.get((self.config.model_dump_json(), case.signature, system_prompt, hidden), make)


_ROLES = ("agent", "sub", "child")
_Borrow = Callable[[str], Awaitable[Address]]


@contextlib.asynccontextmanager
async def _borrowing() -> AsyncIterator[tuple[_Borrow | None, str]]:
    """How other seats are borrowed, if there are any, and who plays children."""
    desk = current_desk.get()
    if desk is None:
        yield None, "agent"
        return
    async with desk.borrowing() as borrow:
        yield borrow, desk.children


def _opening(borrow: _Borrow | None, name: str, own: Address) -> Callable[[], Awaitable[Address]]:
    async def opening() -> Address:
        return own if borrow is None or name == "agent" else await borrow(name)

    return opening


def _told(result: Result, board: Switchboard, case: Case) -> dict[str, Any]:
    """What the trace says of the call."""
    query = case.inputs.get("query")
    return {
        **result.to_dict(),
        "signature": case.signature,
        **({"query": query[:2_000]} if isinstance(query, str) else {}),
        "seats": {
            name: {
                "calls": seat.calls,
                "input_tokens": seat.input_tokens,
                "output_tokens": seat.output_tokens,
                "width": seat.width,
                "stopped": seat.stopped,
            }
            for name, seat in board.seats.items()
        },
    }


def _text(result: Result) -> str:
    """The answer as text: that of the only output, or all of them by name."""
    values = list(result.outputs.items())
    if len(values) == 1:
        value = values[0][1]
        return "" if value is None else str(value)
    return "\n".join(f"{name}: {value}" for name, value in values)


def _done(text: str) -> vf.ProgramResult:
    return vf.ProgramResult(exit_code=0, stdout=text, stderr="")
