"""Compaction: a root whose conversation nears the end of its context window goes on from a summary of it.

`Compaction.make_room` is called before each turn. When the next request would pass a share of the window, the predictor
``compact`` is asked for a summary, behind the conversation as it was sent so far. The conversation then goes on as a
new branch: system message, demonstrations and contract byte for byte as before, the summary with the live variables
behind the contract, the last turns as they were. The REPL with all its variables stays, and gets the turns in full as
``history``. So a summary that forgets something loses nothing for good.

The new branch starts a new training sample: its requests do not begin with those before, which have the earlier turns.
Event log and ``pred.trajectory`` have all turns, compacted or not; `rlm_dspy.events.Compacted` marks the place.

Where no summary can be had (it fails, or there is no budget for it), the outputs of the oldest turns are left out.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import dspy

from rlm_dspy import events as ev
from rlm_dspy import live, shorten
from rlm_dspy.calls import spend
from rlm_dspy.errors import CallRefused, PromptTooLongError
from rlm_dspy.redact import error_text
from rlm_dspy.run import Run, Stopped
from rlm_dspy.signatures.compact import CompactAdapter
from rlm_dspy.signatures.conversation import Branch, conversing, cut
from rlm_dspy.trajectory import Trajectory
from rlm_dspy.window import MOST_CHARS_A_TOKEN, Gauge, given_window, room_for_output, window_of

SHARE = 0.75
"""Share of the window at which a conversation is compacted, unless the option ``compaction`` says another."""
LIMIT = "context_window"
"""The limit that ends a run whose next request fits into no window."""

_LEFT = 0.6
"""Share of what starts a compaction that the new branch may take up, so that not every turn needs one."""
_GAIN = 0.2
"""Share of the conversation that a compaction has to save."""
_EXTRA = 1_500
"""Characters of a request for a summary beyond the conversation; also about those of a note with a short summary."""
_SUMMARY = 6_000
"""Characters of a summary that are kept."""
_NAMES = ("history", "turns_so_far", "turns_so_far_")


class Compaction:
    """Keeps the root's conversation of one run within the window.

    Args:
        run: The run.
        lm: Plays its root.
        task: What is asked, as traces have it.
    """

    def __init__(self, run: Run, lm: Any, task: str) -> None:
        self._run = run
        self._lm = lm
        self._task = task
        self._adapter = CompactAdapter(dspy.settings.adapter)
        wanted = run.program.compaction
        self._share = SHARE if wanted is True else float(wanted)
        self._gauge = Gauge(run.ledger)
        self._window: int | None = None
        self._looked = False
        self._made = 0
        self._most = max(2, run.limits.max_iters // 2)
        self._turns: list[dict[str, Any]] = []

    @property
    def kept(self) -> dict[str, Any]:
        """The variables that were set for the root besides its inputs: name to value."""
        name = self._run.conversation.history
        return {name: self._turns} if name and self._turns else {}

    # ------------------------------------------------------------------------------------------- before a request

    async def make_room(self) -> None:
        """Compact the conversation if the root's next request would pass the share of the window.

        Raises:
            Stopped: It would not fit, and cannot be made to.
            PromptTooLongError: The first message alone is longer than the window.
        """
        run, conversation = self._run, self._run.conversation
        if run.recording is not None:
            for event in run.recording.compacted(run.turn):
                await self._again(event)
            return
        self._gauge.measure()
        window = self._known()
        if window is not None:
            if not conversation.exchanges:
                self._refuse_first(window)
            elif self._share and self._gauge.tokens(conversation.chars()) > self._threshold(window):
                await self._compact(window, run.turn)
                if self._gauge.tokens(conversation.chars()) > self._limit(window):
                    raise Stopped(LIMIT)
        self._gauge.asking(conversation.chars())

    async def too_long(self, error: BaseException) -> None:
        """The root's request was refused as too long: make it shorter, so that it can be asked again.

        Raises:
            Stopped: That cannot be.
            PromptTooLongError: There is nothing in it but the first message.
        """
        conversation = self._run.conversation
        if not conversation.exchanges:
            raise PromptTooLongError(self._too_long(self._gauge.tokens(conversation.chars()), None)) from error
        if not self._share:
            raise self._given_up(error)
        before = conversation.chars()
        # What was refused shows where the window ends, whatever was known of it.
        refused = max(1, int(self._gauge.tokens(before) * 0.9))
        self._window = refused if self._window is None else min(self._window, refused)
        # The request for the summary would be as long.
        shorten.halve(conversation)
        await self._compact(self._window, self._run.turn - 1, before)
        if conversation.chars() > 0.9 * before and not shorten.halve(conversation):
            raise self._given_up(error)
        self._gauge.asking(conversation.chars())

    def _given_up(self, error: BaseException) -> Stopped:
        self._run.events.emit(ev.Note(message=f"the conversation cannot be made to fit: {error_text(error)}"))
        return Stopped(LIMIT)

    def fit_last(self) -> None:
        """Shorten the conversation for the run's last question, which is not to be refused as too long."""
        conversation, window = self._run.conversation, self._known()
        if window is not None:
            chars = self._gauge.chars(self._limit(window)) - _EXTRA
            conversation.branch = shorten.fitting(conversation, chars)

    # ----------------------------------------------------------------------------------------------- the numbers

    def _known(self) -> int | None:
        if not self._looked:
            self._looked = True
            self._window = window_of(self._lm, given_window(self._run))
        return self._window

    def _limit(self, window: int) -> int:
        """Tokens that a request may have."""
        return window - room_for_output(self._lm, window)

    def _threshold(self, window: int) -> int:
        return min(int(self._share * window), self._limit(window))

    def _refuse_first(self, window: int) -> None:
        """Before it is sent, a first message is refused only where it is too long by any count of tokens."""
        chars = self._run.conversation.chars()
        if chars / MOST_CHARS_A_TOKEN > window:
            raise PromptTooLongError(self._too_long(self._gauge.tokens(chars), window))

    def _too_long(self, tokens: int, window: int | None) -> str:
        model = getattr(self._lm, "model", type(self._lm).__name__)
        room = "its context window" if window is None else f"its context window of {window:,} tokens"
        return (
            f"the first message to {model!r}, about {tokens:,} tokens, is longer than {room}. It holds the signature's "
            "instructions, the short inputs, one line for each input and function, and the demonstrations of `act`, "
            "never large inputs. Shorten these (also guidance={'first_look': False}), or use a model with a larger "
            "window; if this one's is larger than that, say so with context_window=..."
        )

    # --------------------------------------------------------------------------------------------------- the work

    async def _compact(self, window: int, turn: int, before: int | None = None) -> None:
        """Put the conversation on a new branch, if that saves enough and was not done too often.

        Args:
            window: Tokens.
            turn: How many the run has finished.
            before: Characters of the conversation, where it has been shortened since.
        """
        run, conversation, started = self._run, self._run.conversation, time.monotonic()
        turns, chars = len(conversation.exchanges), conversation.chars() if before is None else before
        least = conversation.chars(Branch("", turns, turns, turns)) + _EXTRA
        if self._made >= self._most or least > (1 - _GAIN) * chars:
            return
        self._made += 1
        conversation.branch = shorten.fitting(conversation, self._gauge.chars(self._limit(window)) - _EXTRA)
        summary = await self._asked()
        variables = await live.variables(run, hidden={conversation.history})
        await self._keep_history(variables)
        conversation.summary = summary or conversation.summary
        told = live.listed(variables)
        target = int(_LEFT * self._gauge.chars(self._threshold(window)))
        if summary:
            for branch in self._branches(turns, told):
                conversation.branch = branch
                if conversation.chars() <= target:
                    break
        else:
            old = conversation.branch
            branch = replace(old, note=self._note(max(old.since, old.short), told))
            conversation.branch = shorten.fitting(conversation, target, branch)
        run.events.emit(
            ev.Compacted(
                turn=turn,
                tokens_before=self._gauge.tokens(chars),
                tokens_after=self._gauge.tokens(conversation.chars()),
                summary=summary,
                note=conversation.branch.note,
                since=conversation.branch.since,
                short=conversation.branch.short,
                most=conversation.branch.most,
                history=conversation.history,
                seconds=round(time.monotonic() - started, 6),
            )
        )

    def _branches(self, turns: int, told: str) -> list[Branch]:
        """What the conversation may go on as, the best first."""
        status = self._run.conversation.exchanges[-1].status
        one = Branch(self._note(turns - 1, told), turns - 1, 0, turns)
        branches = [one, replace(one, most=1_000), Branch(f"{self._note(turns, told)}\n\n{status}", turns, 0, turns)]
        return branches if turns < 3 else [Branch(self._note(turns - 2, told), turns - 2, 0, turns), *branches]

    def _note(self, gone: int, told: str) -> str:
        """What stands behind the contract: turns up to ``gone`` in short, and what the REPL has."""
        said, parts = self._run.conversation, ["# So far"]
        if gone:
            parts.append(f"Of your turns so far, the first {gone} are not shown in full.")
        if said.summary:
            parts.append(f"Your summary of what was done:\n{said.summary}")
        if told:
            parts.append(f"The variables in the REPL now: {told}.")
        if said.history:
            parts.append(
                f"`{said.history}` has all turns until now in full: a list of dicts with turn, reply, code and output, "
                f"as in print({said.history}[-1]['output'][:2000])."
            )
        parts.append("Go on from here.")
        return "\n\n".join(parts)

    async def _asked(self) -> str:
        """The summary, or ``""``."""
        run, conversation = self._run, self._run.conversation
        module = run.program.compact
        given = (self._task, conversation.traced_turns())
        try:
            with conversing(conversation):
                inputs = dict(zip(getattr(module, "signature", _AsCompact).input_fields, given, strict=True))
                chars = conversation.chars() + _EXTRA if run.ledger.estimates else 0
                asked = spend(
                    run, "compact", module, self._adapter, run.root_lm, chars=chars, counted=True, inputs=inputs
                )
                prediction = await run.bounded(asked)
            return cut(str(prediction.summary or "").strip(), _SUMMARY)
        except Stopped:
            raise
        except CallRefused as refused:
            why = f"{refused.limit} leaves no room for it"
        except Exception as error:
            why = error_text(error)
        finally:
            conversation.reply = conversation.reasoning_content = None
        run.events.emit(ev.Note(message=f"no summary of the conversation: {why}; the oldest outputs are left out"))
        return ""

    async def _keep_history(self, variables: dict[str, str]) -> None:
        """Set ``history`` in the REPL to all turns until now; a variable or input of that name is left alone."""
        run, conversation = self._run, self._run.conversation
        if not conversation.history:
            taken = {*variables, *run.inputs, *run.tools, *run.program.sub_calls}
            conversation.history = next((name for name in _NAMES if name not in taken), "")
        await self._set_history()

    async def _set_history(self) -> None:
        run, conversation = self._run, self._run.conversation
        earlier = [call.trajectory for call in run.within.history] if run.within is not None else []
        self._turns = [
            {"turn": turn.number, "reply": turn.reply, "code": turn.code, "output": turn.output}
            for trajectory in (*earlier, Trajectory.from_events(run.events))
            for turn in trajectory
        ]
        try:
            await run.bounded(run.session.set(self.kept))
        except Stopped:
            raise
        except Exception as error:
            name, conversation.history = conversation.history, ""
            run.events.emit(ev.Note(message=f"the turns could not be set as {name}: {error_text(error)}"))

    async def _again(self, event: ev.Compacted) -> None:
        """Do what a recorded run did here, without asking anybody."""
        conversation = self._run.conversation
        turns = len(conversation.exchanges)
        conversation.branch = Branch(event.note, event.since, event.short, turns, event.most)
        conversation.summary = event.summary or conversation.summary
        conversation.history = event.history
        if event.history:
            await self._set_history()
        self._run.events.emit(event)


class _AsCompact:
    """A module in the predictor's place that has no signature of its own is called like it."""

    input_fields = ("task", "turns")
