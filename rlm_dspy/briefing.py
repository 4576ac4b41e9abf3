"""What the root is told of its run: the contract in the first message, and what is left after each turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rlm_dspy import inputs as inputs_
from rlm_dspy import submit
from rlm_dspy.functions import HostFunctions
from rlm_dspy.guide import Guide
from rlm_dspy.redact import error_text
from rlm_dspy.run import Run
from rlm_dspy.signatures import Contract, demonstration
from rlm_dspy.signatures.contract import VariableInfo

NEXT = "# Next task\n"
"""What the task of a session's later call begins with."""


class Briefing:
    """The contract and the status lines of one run.

    Args:
        run: The run.
        variables: What is known of the inputs.
        functions: What its code may call.
        guide: Knows how the data is written.

    Attributes:
        contract: The contract, once `tell` has made it.
        trouble: What went wrong in making it, for the event log.
    """

    def __init__(
        self, run: Run, variables: Sequence[VariableInfo], functions: HostFunctions, guide: Guide
    ) -> None:
        self._run = run
        self._guide = guide
        self._variables = variables
        self._functions = functions
        self._guidance = run.program.guidance
        self.task = inputs_.task_text(run.inputs)
        self.asked = inputs_.asked(run.signature, run.inputs)
        self.contract = Contract("", (), (), ())
        self.trouble: list[str] = []

    def tell(self) -> None:
        """Put the contract and the demonstration into the conversation."""
        run, guidance = self._run, self._guidance
        contract = self.contract = self._made()
        run.conversation.guidance, run.conversation.answers = guidance, tuple(run.signature.output_fields)
        if run.conversation.exchanges:
            # Of earlier calls of a session: what has been told stands above.
            told = dataclasses.replace(contract, functions=(), environment="")
            run.conversation.go_on(f"{NEXT}{told.render(short=guidance.short_contract)}")
            return
        demos = getattr(run.program.act, "demos", None) or []
        shown = guidance.demonstration or any(demo.get("code") for demo in demos)
        facts = contract.render(short=guidance.short_contract)
        run.conversation.contract = f"{demonstration.FRESH}{facts}" if shown else facts
        if guidance.demonstration:
            run.conversation.demonstration = demonstration.messages(contract, guidance)

    def words(self) -> dict[str, dict[str, int]]:
        """The task's telling words in each large text that was looked at, and how often they stand there."""
        return {variable.name: dict(variable.words) for variable in self.contract.variables if variable.look}

    def status(self, output: str, failed: bool, found: bool) -> str:
        """What is left before the next turn, and what to do in it.

        Args:
            output: What the root is shown of this turn.
            failed: The turn ended in an error.
            found: Its code found something.
        """
        run = self._run
        left = run.limits.max_iters - run.turn
        if left <= 0:
            return ""
        parts = [f"turn {run.turn + 1} of {run.limits.max_iters}", *self._spent()]
        if left == 1:
            parts.append("this is the last turn: SUBMIT now")
        status = f"[{'; '.join(parts)}]"
        if not self._guidance.repeat_task:
            return status
        return f"{status}\n{self.contract.reminder(failed, output, found)}"

    def _spent(self) -> list[str]:
        """What is left of the limits that have begun to matter. Coarse where it differs from run to run: a text that
        changes with every run would defeat every cache."""
        run, limits = self._run, self._run.limits
        parts = []
        calls = run.ledger.calls_left
        if calls is not None and calls < (limits.max_llm_calls or 0):
            parts.append(f"{calls} of {limits.max_llm_calls} sub-LM calls left")
        for left, limit, what in (
            (run.ledger.tokens_left, limits.max_tokens, "tokens"),
            (run.ledger.cost_left, limits.max_cost, "money"),
            (run.ledger.seconds_left, limits.max_seconds, "time"),
        ):
            if left is not None and limit and left < limit / 2:
                share = "a quarter" if left < limit / 4 else "half"
                parts.append(f"less than {share} of the {what} left")
        return parts

    def _looked_at(self, variable: VariableInfo) -> VariableInfo:
        """``variable`` with a first look at it; without one where that fails, which is no reason to end a run."""
        try:
            value, data = self._run.inputs[variable.name], self._guide.data(variable.name)
            return inputs_.looked_at(variable, value, self.asked, data)
        except Exception as error:
            self.trouble.append(f"no first look at {variable.name}: {error_text(error)}")
            return variable

    def _made(self) -> Contract:
        run = self._run
        look = self._guidance.first_look
        return Contract(
            task="" if self.task and inputs_.default_instructions(run.signature) else run.signature.instructions,
            question=self.task,
            variables=tuple(self._looked_at(variable) if look else variable for variable in self._variables),
            functions=self._functions.infos(),
            outputs=submit.outputs_of(run.signature),
            limits=tuple(self._limits()),
            environment=_told_of(run.factory),
            notes=run.program.notes if run.within is None else run.within.notes(),
        )

    def _limits(self) -> list[str]:
        run, limits = self._run, self._run.limits
        lines = [f"{limits.max_iters} turns"]
        calls = run.ledger.calls_left
        if calls is not None:
            lines.append(f"{calls} sub-LM calls, up to {limits.max_concurrency} at the same time")
        if run.levels > 0:
            lines.append(f"{run.levels} level{'s' if run.levels > 1 else ''} of children")
        if limits.max_tokens is not None:
            lines.append(f"{limits.max_tokens:,} tokens in all LM calls together")
        if limits.max_cost is not None:
            lines.append(f"${limits.max_cost:g} for all LM calls together")
        if limits.max_seconds is not None:
            seconds = limits.max_seconds
            # A child's is a share of what its parent had left: rounded, so that equal runs are told equal things.
            about = f"about {max(1, round(seconds, -1)):.0f} seconds"
            lines.append(about if run.depth else f"{seconds:g} seconds")
        lines.append(f"{run.output_chars:,} characters of output are shown of each turn")
        return lines


def _told_of(factory: object) -> str:
    """What a factory of interpreters says of the place that they run in; ours also say what is given there."""
    text = getattr(factory, "instructions", None) or getattr(factory, "execution_instructions", None)
    return text if isinstance(text, str) else ""
