"""Children: RLMs that the REPL's code starts, with a session of their own and the same predictors.

``rlm_query(prompt, **inputs)`` runs the program once more, one level deeper: the prompt is its task, the inputs become
its variables without going through any prompt. Children of a batch run at once, as many as the tree's gate lets
through. At the last level a single sub-call answers instead, and the code is told so.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy import events as ev
from rlm_dspy._aio import gathered
from rlm_dspy.environments.base import HostFunction
from rlm_dspy.errors import CallRefused
from rlm_dspy.origin import Start, starting
from rlm_dspy.redact import error_text
from rlm_dspy.render import brief, one_line
from rlm_dspy.shapes import Shape, plain
from rlm_dspy.signatures.child import Child
from rlm_dspy.signatures.contract import FunctionInfo
from rlm_dspy.subcalls import SubCalls, failed

if TYPE_CHECKING:
    from rlm_dspy.functions import Recorder
    from rlm_dspy.run import Run

MAX_TREE_DEPTH = 32
"""Runs within runs, those that tools start included; deeper is a recursion that nobody meant."""

_PROMPT = Shape.of_signatures(Child, Child)
_RLM_QUERY = FunctionInfo(
    "rlm_query(prompt: str, **inputs) -> str",
    "let a child with a REPL of its own do a part of the work that itself needs code or many steps; what is passed by "
    "keyword, of any size, is a variable there: rlm_query('Sum up the complaints', text=part)",
)
_RLM_QUERY_BATCHED = FunctionInfo(
    "rlm_query_batched(requests: list[dict]) -> list[str]",
    "several children at the same time, as in rlm_query_batched([{'prompt': p, 'text': t} for t in parts])",
)


class Children:
    """The children of one run.

    Args:
        run: The parent.
        calls: Its sub-calls, which answer at the last level.
        recorded: Records one call in the event log.
    """

    def __init__(self, run: Run, calls: SubCalls, recorded: Recorder) -> None:
        self._run = run
        self._calls = calls
        self._recorded = recorded
        self._notices: list[str] = []
        self._said: set[str] = set()

    def functions(self, taken: set[str]) -> dict[str, HostFunction]:
        """Name to function."""
        functions: dict[str, HostFunction] = {"rlm_query": self.rlm_query, "rlm_query_batched": self.rlm_query_batched}
        return {name: function for name, function in functions.items() if name not in taken}

    def infos(self, taken: set[str]) -> list[FunctionInfo]:
        """What the contract says of them: nothing where there can be no children."""
        if self._run.levels < 1:
            return []
        one, many = _RLM_QUERY, _RLM_QUERY_BATCHED
        if self._run.program.child is not None:
            one, many = self._shape.infos("rlm_query")
        return [info for info in (one, many) if info.call.split("(")[0] not in taken]

    def notices(self) -> list[str]:
        """What the code is to be told since this was last asked, each once in a run."""
        told, self._notices = self._notices, []
        return told

    async def rlm_query(self, *args: Any, model: str | None = None, **inputs: Any) -> Any:
        """One child: its answer."""
        return await self._answer("rlm_query", self._bound(args, inputs), model)

    async def rlm_query_batched(self, requests: Any, /, *, model: str | None = None, **shared: Any) -> list[Any]:
        """Several children at once: their answers in order, and in the place of one that failed, why."""
        name = "rlm_query_batched"
        if isinstance(requests, (str, Mapping)) or not isinstance(requests, (list, tuple)):
            raise TypeError(f"{name} takes a list of prompts, or of dicts such as {{'prompt': ..., 'text': part}}")
        bound = [
            self._bound((), {**shared, **entry}) if isinstance(entry, Mapping) else self._bound((entry,), shared)
            for entry in requests
        ]

        async def slot(inputs: dict[str, Any]) -> Any:
            try:
                return await self._answer(name, inputs, model)
            except Exception as error:
                return failed(error)

        return await gathered(slot(inputs) for inputs in bound)

    @functools.cached_property
    def _shape(self) -> Shape:
        child = self._run.program.child
        return _PROMPT if child is None else Shape.of(child)

    def _bound(self, args: tuple[Any, ...], inputs: dict[str, Any]) -> dict[str, Any]:
        if self._run.program.child is not None:
            return self._shape.bind("rlm_query", args, inputs)
        if len(args) > 1:
            raise TypeError("rlm_query takes one prompt; pass everything else by keyword: rlm_query(prompt, text=part)")
        if args and "prompt" in inputs:
            raise TypeError("rlm_query got the prompt twice")
        prompt = args[0] if args else inputs.pop("prompt", None)
        if not isinstance(prompt, str) or not prompt.strip():
            raise TypeError("rlm_query needs a prompt, a text that says what is asked: rlm_query('Find ...', text=t)")
        return {**{name: plain(value) for name, value in inputs.items()}, "prompt": prompt}

    async def _answer(self, name: str, inputs: dict[str, Any], model: str | None) -> Any:
        run = self._run
        lm = None if model is None else run.program.routes.named(model)
        if run.levels < 1:
            return await self._without_child(inputs, model)
        preview = one_line(str(inputs.get("prompt") or next(iter(inputs.values()), "")))
        return await self._recorded(name, preview, functools.partial(self._child, name, inputs, lm))

    async def _child(self, name: str, inputs: dict[str, Any], lm: Any) -> Any:
        run = self._run
        child = run.program.child
        if run.depth + 1 >= MAX_TREE_DEPTH:
            raise CallRefused(f"runs are nested {MAX_TREE_DEPTH} deep: this recursion does not end", "max_depth")
        # A call for its first turn is reserved with that turn; this one is for its last word.
        run.ledger.reserve_calls(1)
        spoken = False
        gate = run.tree.children(run.depth + 1)
        try:
            await gate.acquire()
            try:
                run.ledger.count_child()
                if child is not None and not _is_rlm(child):
                    spoken = True
                    return await self._module(child, inputs, lm)
                start = Start(run, lm)
                try:
                    return await self._run_child(name, start, child or run.program.child_view(tuple(inputs)), inputs)
                finally:
                    spoken = start.run is not None and start.run.extracted
            finally:
                gate.release()
        finally:
            run.ledger.settle_call(made=spoken)

    async def _run_child(self, name: str, start: Start, program: Any, inputs: dict[str, Any]) -> Any:
        """Call ``program`` like any module, so that DSPy's callbacks see it, but as a child of this run."""
        run, turn = self._run, self._run.turn

        def begun(child: Run) -> None:
            run.events.emit(ev.ChildStarted(turn=turn, name=name, run_id=child.id, at_depth=child.depth))

        start.begun = begun
        outcome: str = "cancelled"
        limit = error = None
        try:
            with starting(start):
                prediction = await program.acall(**inputs)
            outcome, limit, error = str(prediction.outcome), prediction.outcome.limit, prediction.outcome.error
        except Exception as raised:
            outcome, error = "failed", error_text(raised)
            raise
        finally:
            if (child := start.run) is not None:
                run.events.emit(
                    ev.ChildEnded(
                        turn=turn,
                        name=name,
                        run_id=child.id,
                        outcome=outcome,
                        limit=limit,
                        error=error,
                        seconds=round(child.events.elapsed, 6),
                        events=tuple(child.events),
                    )
                )
        if outcome == "failed":
            rest = [one_line(str(v), 500) for k in program.signature.output_fields if (v := prediction[k]) is not None]
            had = f"; the last it had was: {', '.join(rest)}" if rest else ""
            why = [f"it was stopped at {limit}"] if limit else []
            why += [brief(error)] if error else []
            raise RuntimeError(f"the child found no answer: {', then '.join(why)}{had}")
        if outcome == "extracted":
            self._tell(f"{name}: a child was stopped at {limit or 'an error'}; what it gave is its best answer so far.")
        return Shape.of(program).value(prediction)

    async def _module(self, child: dspy.Module, inputs: dict[str, Any], lm: Any) -> Any:
        """A child that is no RLM: any module, called on the host."""
        from rlm_dspy.calls import spend

        run = self._run
        prediction = await spend(run, "child", child, None, lm, inputs=inputs)
        return self._shape.value(prediction)

    async def _without_child(self, inputs: dict[str, Any], model: str | None) -> Any:
        """The last level: one sub-call, with everything in its prompt."""
        limit = self._run.program.max_depth
        if self._run.program.child is not None:
            raise CallRefused(f"there can be no more children here (max_depth={limit}): use llm_query", "max_depth")
        values = [f"{key}:\n{value}" for key, value in inputs.items() if key != "prompt"]
        answer = await self._calls.llm_query("\n\n".join([inputs["prompt"], *values]), model=model)
        self._tell(f"rlm_query was answered by one sub-LM call: there are no more levels here (max_depth={limit}).")
        return answer

    def _tell(self, notice: str) -> None:
        if notice not in self._said:
            self._said.add(notice)
            self._notices.append(notice)


def _is_rlm(module: Any) -> bool:
    from rlm_dspy.rlm import RLM

    return isinstance(module, RLM)
