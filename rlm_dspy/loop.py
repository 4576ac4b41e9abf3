"""The loop: one implementation for synchronous and asynchronous calls.

A turn asks the root for an action, runs its code, and shows it what came of it. The loop ends with a submitted answer,
or at a limit or an error with the best answer that ``extract`` can make of what was done. It never throws away what
was computed: a terminal error before the first finished turn is raised as it is, any later one becomes an outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from rlm_dspy import _compat, shorten, submit, watched
from rlm_dspy import events as ev
from rlm_dspy import inputs as inputs_
from rlm_dspy._aio import caught, threads
from rlm_dspy.aside import bounded, one_by_one
from rlm_dspy.briefing import Briefing
from rlm_dspy.calls import keeping_replies, spend, varied
from rlm_dspy.compaction import Compaction
from rlm_dspy.environments.base import CellError, CellResult, Submission
from rlm_dspy.errors import CallRefused
from rlm_dspy.functions import HostFunctions
from rlm_dspy.guide import Guide, SecondLook
from rlm_dspy.kept import Kept
from rlm_dspy.leftovers import Leftovers
from rlm_dspy.observation import final_text, no_code, output_of
from rlm_dspy.providers.failures import was_filtered
from rlm_dspy.redact import error_text
from rlm_dspy.run import Run, Stopped
from rlm_dspy.signatures import ConversationAdapter, Exchange
from rlm_dspy.signatures.contract import REFUSED, VariableInfo, is_nothing
from rlm_dspy.signatures.conversation import conversing, cut
from rlm_dspy.signatures.dialect import labelled_code
from rlm_dspy.window import overflowed, root_lm

VALIDATION_SECONDS = 10.0
"""Time that checking a submission has at least, also where ``max_seconds`` ends in the middle of it."""
SECOND_LOOK = 10.0
"""Seconds that mended code may run."""
NOT_WANTED = "it was stopped, and no answer was asked for"


@dataclass(frozen=True)
class Ending:
    """How the turns ended: with ``outputs``, at a ``limit``, or by an ``error``."""

    outputs: dict[str, Any] | None = None
    limit: str | None = None
    error: BaseException | None = None


class Loop:
    """Drives one run.

    Args:
        run: Its session is set and not yet open.
        variables: What is known of the inputs.
    """

    def __init__(self, run: Run, variables: Sequence[VariableInfo]) -> None:
        self.run = run
        self.functions = HostFunctions(run)
        self.guide = Guide(run)
        self.briefing = Briefing(run, variables, self.functions, self.guide)
        self.adapter = ConversationAdapter(dspy.settings.adapter)
        self.final_reasoning = ""
        self.guidance = run.program.guidance
        self.compaction = Compaction(run, self._root_lm, self.briefing.task)
        self.leftovers = Leftovers(run)

    async def open(self) -> Ending | None:
        """Open the session and hand it the inputs; an ending if a limit struck first."""
        run = self.run
        limit: str | None = None
        if run.within is not None:
            try:
                await run.bounded(run.within.prepare(run))
            except Stopped as stopped:
                limit = stopped.limit
        # In a thread, while the sandbox starts: to go through an input of 100 MB takes longer than that.
        telling = threads.submit(functools.partial(one_by_one, self.briefing.tell))
        run.conversation.replay_reasoning = _compat.replays_reasoning(self._root_lm)
        started = time.monotonic()
        try:
            if limit is None:
                await run.bounded(watched.open_session(run.session))
                await run.bounded(self._set_inputs())
        except Stopped as stopped:
            limit = stopped.limit
        # Not bounded: `extract` needs what is told as well.
        await asyncio.wrap_future(telling)
        self.guide.words = self.briefing.words()
        for message in self.briefing.trouble:
            run.events.emit(ev.Note(message=message))
        if limit is not None:
            run.events.emit(ev.LimitStruck(limit=limit, where="open", used=_used(run)))
            return Ending(limit=limit)
        about = run.session.describe()
        run.events.emit(
            ev.SessionOpened(
                environment=about.environment,
                confined=about.confined,
                layers=about.layers,
                missing=about.missing,
                seconds=_since(started),
            )
        )
        return None

    async def _set_inputs(self) -> None:
        run = self.run
        values = dict(run.inputs) if run.within is None else await run.within.missing(run)
        values = {**values, **self.compaction.kept}
        try:
            await run.session.set(values)
        except (TypeError, ValueError):
            # One by one, to learn which it was.
            for name, value in values.items():
                try:
                    await run.session.set({name: value})
                except (TypeError, ValueError) as error:
                    raise inputs_.InputError(f"Input {name!r} cannot be sent into the sandbox: {error}") from error
            raise
        if run.within is not None:
            await run.within.name_current(run)

    async def turns(self) -> Ending:
        """Turn after turn until an answer, a limit or a terminal error."""
        run = self.run
        while (limit := self._limit()) is None:
            where = "compact"
            try:
                await self.compaction.make_room()
                where = "act"
                run.turn = run.ledger.begin_turn()
                run.events.emit(ev.TurnStarted(turn=run.turn))
                self.functions.calls.start_turn()
                code = await self._act()
                where = "execute"
                outputs = await self._execute(code) if code is not None else None
            except Stopped as stopped:
                run.events.emit(ev.LimitStruck(limit=stopped.limit, where=where, used=_used(run)))
                return Ending(limit=stopped.limit)
            except Exception as error:
                return Ending(error=error)
            if outputs is not None:
                return Ending(outputs=outputs)
            if self.guide.stuck:
                run.events.emit(ev.LimitStruck(limit="repeats", where="turns", used=_used(run)))
                return Ending(limit="repeats")
        run.events.emit(ev.LimitStruck(limit=limit, where="turns", used=_used(run)))
        return Ending(limit=limit)

    def _limit(self) -> str | None:
        """Why there is no other turn, or None."""
        run = self.run
        if run.recording is not None:
            return run.recording.limit(run.turn)
        return run.stop_reason or run.ledger.exceeded()

    async def extract(self) -> dict[str, Any]:
        """The best answer from what was done, within ``extract_seconds``."""
        run = self.run
        if run.recording is not None:
            return run.recording.extract()
        started = time.monotonic()
        run.conversation.extracting = True
        exchanges = run.conversation.exchanges
        if self.guidance.repeat_task and exchanges and not exchanges[-1].following:
            # What it says to do next is over, and small models do it all the same.
            exchanges[-1] = dataclasses.replace(exchanges[-1], status=self.briefing.contract.restated())
        try:
            with conversing(run.conversation):
                names = list(run.program.extract.signature.input_fields)
                given = dict(zip(names, (self.briefing.task, run.conversation.traced_turns()), strict=True))
                limit = run.limits.extract_seconds
                if not run.answer_wanted:
                    raise RuntimeError(NOT_WANTED)
                try:
                    async with asyncio.timeout(limit) as deadline:
                        run.extracting = deadline
                        prediction, fatal = await caught(self._last_word(given))
                except TimeoutError:
                    if not deadline.expired():
                        raise
                    if not run.answer_wanted:
                        raise RuntimeError(NOT_WANTED) from None
                    raise TimeoutError(f"no answer was extracted within {limit:g} seconds (extract_seconds)") from None
                finally:
                    run.extracting = None
                if fatal is not None:
                    raise fatal
                assert prediction is not None
                outputs = {name: prediction[name] for name in run.signature.output_fields}
        except Exception as error:
            run.events.emit(ev.Extracted(error=error_text(error), seconds=_since(started)))
            if self.guide.doubted:
                # It was submitted, and there is none better.
                return self.guide.doubted[-1]
            raise
        run.events.emit(ev.Extracted(outputs=await kept_outputs(run, outputs), seconds=_since(started)))
        return outputs

    async def _last_word(self, given: dict[str, Any]) -> dspy.Prediction:
        run, module = self.run, self.run.program.extract
        run.extracted = True
        self.compaction.fit_last()
        while True:
            chars = run.conversation.chars() if run.ledger.estimates else 0
            try:
                return await spend(
                    run, "extract", module, self.adapter, run.root_lm, chars=chars, last=True, inputs=given
                )
            except Exception as error:
                if not overflowed(error) or not shorten.halve(run.conversation):
                    raise

    async def _act(self) -> str | None:
        """Ask the root for its next action: its code, or None after an error turn."""
        run, conversation = self.run, self.run.conversation
        conversation.reply, conversation.reasoning_content = None, None
        started = time.monotonic()
        # Where parsing sees all that is needed of a reply, it is not looked at twice.
        seen = isinstance(run.program.act, dspy.Predict) and not conversation.replay_reasoning
        with conversing(conversation), contextlib.nullcontext() if seen else keeping_replies():
            given = {"task": self.briefing.task, "turns": conversation.traced_turns()}
            try:
                prediction = await self._ask(given)
            except Exception as error:
                filtered = was_filtered(error)
                unread = isinstance(error, AdapterParseError) and (conversation.reply is not None or seen)
                if not filtered and not unread:
                    raise
                # A reply without any text is never parsed.
                reply = conversation.reply = ("" if filtered else conversation.reply) or ""
                example = self.guide.stated(reply) or self.briefing.contract.submit_example()
                problem = no_code(reply, filtered, example)
                run.events.emit(
                    ev.Acted(turn=run.turn, reply=reply, reasoning=reply, error=problem, seconds=_since(started))
                )
                observation = self.guide.noted(reply, problem)
                self._tell_aids()
                self._end_turn(observation, error=True)
                return None
        reasoning, code = str(prediction.reasoning or ""), str(prediction.code or "")
        if conversation.reply is None:
            # An adapter or module of the user's own may answer without an LM reply that we saw.
            conversation.reply = f"{reasoning}\n\n```python\n{code}\n```" if reasoning else f"```python\n{code}\n```"
        self.final_reasoning = reasoning
        run.events.emit(
            ev.Acted(
                turn=run.turn, reply=conversation.reply, reasoning=reasoning, code=code, seconds=_since(started)
            )
        )
        if self.guidance.salvage and labelled_code(conversation.reply).code != code:
            run.events.emit(ev.Aided(turn=run.turn, aid="salvage"))
        return code

    async def _ask(self, given: dict[str, Any]) -> dspy.Prediction:
        """The root's next action; what is too long for its LM is made shorter and asked again."""
        while True:
            try:
                return await self._ask_once(given)
            except Exception as error:
                if not overflowed(error):
                    raise
                await self.compaction.too_long(error)

    async def _ask_once(self, given: dict[str, Any]) -> dspy.Prediction:
        """The root's next action; an LM that refuses another temperature is asked once more as it is.

        Raises:
            Stopped: A limit leaves no room for the call, or struck while it was made.
        """
        if self.run.recording is not None:
            return self.run.recording.act()
        run, shaken = self.run, self._shaken()
        chars = 0
        if run.ledger.estimates:
            chars = run.conversation.chars()
            lm = self._root_lm
            price = run.ledger.prices.of(str(getattr(lm, "model", "")), lm)
            # What this turn adds will have to be read as well.
            run.ledger.hold(run.ledger.estimate("extract", chars + min(run.program.max_output_chars, 4_000), price))
        bounds: dict[str, Any] = {"chars": chars, "least": run.turn == 1, "counted": True}
        ask = functools.partial(spend, run, "act", run.program.act, self.adapter, run.root_lm, **bounds)
        try:
            if shaken:
                try:
                    return await run.bounded(ask(inputs={**given, **shaken}))
                except (Stopped, AdapterParseError, CallRefused):
                    raise
                except Exception as error:
                    if overflowed(error):
                        raise
                    run.events.emit(ev.Note(message=f"asked again without a higher temperature: {error_text(error)}"))
            return await run.bounded(ask(inputs=given))
        except CallRefused as refused:
            raise Stopped(refused.limit) from None

    @property
    def _root_lm(self) -> Any:
        """The LM that plays the root."""
        return root_lm(self.run)

    def _shaken(self) -> dict[str, Any]:
        """A higher temperature for a root that has just repeated itself: at 0 it would do so for ever.

        Only where the LM has a temperature of its own already: some take none.
        """
        act, lm = self.run.program.act, self._root_lm
        # The caller's own forward may take no configuration, and a custom LM no other settings.
        plain = type(act).forward is dspy.Predict.forward and isinstance(lm, dspy.LM)
        if not self.guide.circling or not plain:
            return {}
        config = varied(lm, act, self.run.turn)
        return {"config": config} if "temperature" in config else {}

    async def _execute(self, code: str) -> dict[str, Any] | None:
        """Run the turn's code; the validated outputs if it submitted them."""
        run = self.run
        if (refused := self.guide.refuse_code(code)) is not None:
            self._tell_aids()
            await self._executed(code, CellResult(error=CellError("RefusedError", refused, refused)))
            return None
        if run.recording is not None and (cut_short := run.recording.cut_short(code)) is not None:
            await self._executed(code, cut_short[0])
            raise Stopped(cut_short[1])
        if "dspy" in code:
            await run.bounded(self.functions.install_sub_agents())
        interrupt = getattr(run.session, "interrupt", None)
        try:
            result: CellResult = await run.bounded(
                watched.run_cell(run.session, code, self.functions.all()), interrupt=interrupt
            )
        except Stopped as stopped:
            # Code that resists the interrupt is given up; what it printed and submitted until then is not.
            message = f"the code was stopped: {stopped.limit}"
            error = CellError("TimeoutError", message, message, "timeout")
            printed = str(getattr(run.session, "partial_output", ""))
            submission = getattr(run.session, "partial_submission", None)
            outputs, refusal = await self._validated(submission) if submission is not None else (None, None)
            stopped_at = CellResult(stdout=printed, error=error, submission=submission)
            await self._executed(code, stopped_at, outputs, refusal)
            if outputs is not None:
                return outputs
            raise
        outputs = refusal = None
        if result.submission is not None:
            outputs, refusal = await self._validated(result.submission)
            if outputs is not None:
                doubt = await self._aided(self.guide.doubt, code, result, outputs)
                outputs, refusal = (outputs, None) if doubt is None else (None, f"{REFUSED}{doubt}")
        again, lost = await self._second_look(code, result) if outputs is None else (None, ())
        await self._executed(code, dataclasses.replace(result, lost=result.lost or lost), outputs, refusal, again)
        if (result.lost or lost) and outputs is None:
            # The inputs are still here on the host; only what code had made of them is gone.
            self.functions.forget_sub_agents()
            await run.bounded(self._set_inputs())
        return outputs

    async def _second_look(self, code: str, result: CellResult) -> tuple[SecondLook | None, tuple[str, ...]]:
        """What code with mended conditions finds, where ``code`` found nothing, and the variables that it cost.

        It has no host functions, and whatever becomes of it, what ``code`` itself gave stays as it is.
        """
        run = self.run
        looks = [] if result.lost else await self._aided(self.guide.second_looks, code, result)
        left = run.ledger.seconds_left
        # About as long as the first look took; both looks together.
        most = SECOND_LOOK if left is None else min(SECOND_LOOK, left / 20)
        until = time.monotonic() + min(most, max(0.5, 3 * result.seconds))
        for look in looks or []:
            try:
                work = run.session.run(look.run, {}, timeout=max(0.05, until - time.monotonic()))
                again: CellResult = await run.bounded(work, interrupt=getattr(run.session, "interrupt", None))
            except (Stopped, dspy.CodeInterpreterError) as error:
                run.events.emit(ev.Note(message=f"a second look was given up: {error_text(error)}"))
                break
            if again.lost:
                return None, again.lost
            found = output_of(dataclasses.replace(again, error=None), None, ())
            if again.error is None and found and not is_nothing(found):
                return dataclasses.replace(look, found=found), ()
        return None, ()

    async def _aided(self, aid: Callable[..., Any], *given: Any) -> Any:
        """What an aid of `Guide` says. One that fails, or is not done at a limit, says nothing: the run goes on."""
        try:
            return await bounded(self.run, aid, *given) if self.guide.slow else aid(*given)
        except Stopped as stopped:
            self.run.events.emit(ev.Note(message=f"the aid {aid.__name__} was given up: {stopped.limit}"))
            return None
        except Exception as error:
            self.run.events.emit(ev.Note(message=f"the aid {aid.__name__} failed: {error_text(error)}"))
            return None
        finally:
            self._tell_aids()

    def _tell_aids(self) -> None:
        """Report what the aids did. Here, because subscribers are called on the run's own thread."""
        acted, self.guide.acted = self.guide.acted, []
        for aid in dict.fromkeys(acted):
            self.run.events.emit(ev.Aided(turn=self.run.turn, aid=aid))

    async def _validated(self, submission: Submission) -> tuple[dict[str, Any] | None, str | None]:
        """The outputs of a submission, or why it is refused. An answer that came in time is not lost to the clock."""
        run = self.run
        left = run.ledger.seconds_left
        seconds = None if left is None else max(left, VALIDATION_SECONDS)
        try:
            # In a thread, because a large value takes seconds, and the user's own validators what they like.
            validation = threads.run(submit.validate, submission, run.signature)
            return await asyncio.wait_for(validation, timeout=seconds), None
        except submit.Refused as refused:
            return None, f"{REFUSED}{refused}"
        except TimeoutError:
            return None, f"{REFUSED}checking the values took longer than there was time"

    async def _executed(
        self,
        code: str,
        result: CellResult,
        outputs: dict[str, Any] | None = None,
        refusal: str | None = None,
        again: SecondLook | None = None,
    ) -> None:
        """Record what a cell did and end the turn with it."""
        run = self.run
        self.leftovers.add(result)
        output = output_of(result, refusal, (*run.inputs, *self.compaction.kept))
        error = result.error.traceback if result.error else refusal
        if outputs is not None:
            error = None
            final = f"FINAL: {final_text(outputs, run.program.max_output_chars)}"
            output = f"{output}\n{final}" if output else final
        notices = self.functions.notices()
        run.events.emit(
            ev.Executed(
                turn=run.turn,
                output=output,
                error=error,
                submitted=outputs is not None,
                lost=result.lost,
                notices=tuple(notices),
                images=tuple((image.type, image.base64) for image in result.images),
                seconds=result.seconds,
                host_seconds=result.host_seconds,
            )
        )
        output = output or "(no output: print what you want to see)"
        if notices:
            output = "\n".join([output, *(f"[{notice}]" for notice in notices)])
        if outputs is None:
            output = await self._aided(self.guide.remarks, code, result, output, again) or output
        self._end_turn(output, error=error is not None)

    def _end_turn(self, output: str, *, error: bool) -> None:
        """Settle the turn and put what the root will see of it into the conversation, truncated for good."""
        run, conversation = self.run, self.run.conversation
        run.ledger.end_turn(error=error)
        observation = cut(output, run.output_chars)
        conversation.exchanges.append(
            Exchange(
                reply=conversation.reply or "",
                output=observation,
                status=self.briefing.status(output, error, not self.guide.found_nothing),
                reasoning_content=conversation.reasoning_content,
            )
        )
        run.events.emit(ev.TurnEnded(turn=run.turn, observation=observation, error=error, used=_used(run)))


async def kept_outputs(run: Run, outputs: dict[str, Any]) -> Kept:
    """``outputs`` for an event."""
    try:
        return await run.events.keep(outputs)
    except (TypeError, ValueError) as error:
        return Kept(why=error_text(error))


def _used(run: Run) -> dict[str, Any]:
    return run.ledger.usage().total.to_dict()


def _since(started: float) -> float:
    return round(time.monotonic() - started, 6)
