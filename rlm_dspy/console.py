"""What a run does, shown to a person while it happens."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from rlm_dspy import events as ev
from rlm_dspy import screen as screens
from rlm_dspy.live_area import Row, spent, telling
from rlm_dspy.render import brief, one_line, shorten
from rlm_dspy.screen import Screen

if TYPE_CHECKING:
    from rlm_dspy.run import Run

_LINES = 24
_CHARS = 3_000
_FAILURES_SHOWN = 3
_PROGRESS_SECONDS = 10.0
_TOLD = 4
"""Children that run at once and are told of in full on a terminal; of more, only how they end."""


class ConsoleSubscriber:
    """An `rlm_dspy.events.Subscriber` for a person: turns, plans, code, output, sub-calls, and how it ended.

    On a terminal there is a live area below the lines, with the tree of runs as it is now: turns, the code that is
    being run, calls in flight, children, and what is spent of the limits; it has a bounded height, and of more than
    four children at once the lines above only say how they end. On any other stream there are plain lines only,
    without escape sequences. One subscriber may see any number of runs, also at the same time.

    Args:
        stream: Where to write; ``sys.stderr`` as it is when a run begins, if None.
        live: True to treat the stream as a terminal, False for no live area; None asks the stream.
        color: False for no colour; None leaves the choice to the terminal and ``NO_COLOR``.
        outputs: Whether to show the outputs when a run ends.
        errors: Whether to show the error that ended a run.

    Example:
        >>> with rlm_dspy.subscribe(ConsoleSubscriber()):  # doctest: +SKIP
        ...     rlm(context=text, query="Which clauses changed?")
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        live: bool | None = None,
        color: bool | None = None,
        outputs: bool = True,
        errors: bool = True,
    ) -> None:
        self._stream = stream
        self._live = live
        self._color = color
        self._outputs = outputs
        self._errors = errors
        self._views: dict[str, _View] = {}
        self._lock = threading.Lock()

    def __call__(self, event: ev.Event, run: Run) -> None:
        """Show one event."""
        with self._lock:
            view = self._views.get(run.id)
            if view is None:
                stream = self._stream if self._stream is not None else sys.stderr
                if stream is None or isinstance(event, ev.RunEnded):
                    return
                screen = screens.acquire(stream, live=self._live, color=self._color)
                above = self._views.get(run.parent.id) if run.parent is not None else None
                view = self._views[run.id] = _View(screen, run, self._outputs, self._errors, above)
        view.show(event)
        if isinstance(event, ev.RunEnded):
            with self._lock:
                self._views.pop(run.id, None)
            view.close()

    def message(self, text: str, style: str = "bold yellow") -> bool:
        """Show a message of the program's own among the runs; False if no run is being shown."""
        with self._lock:
            view = next(iter(self._views.values()), None)
        if view is None:
            return False
        view.screen.line(text, style)
        return True

    def close(self) -> None:
        """Forget the runs being shown and leave the stream as it was found. Idempotent."""
        with self._lock:
            views, self._views = list(self._views.values()), {}
        for view in views:
            view.close()


def verbose_printer() -> ev.Subscriber:
    """What ``RLM(verbose=True)`` shows its runs with: a `ConsoleSubscriber` on ``sys.stderr``."""
    return ConsoleSubscriber()


class _View:
    """One run on a screen."""

    def __init__(self, screen: Screen, run: Run, outputs: bool, errors: bool, above: _View | None) -> None:
        self.screen = screen
        self._children = 0
        self._above = above
        if above is not None:
            above._children += 1
        # Told of in short: its parent has many children at once, or is told of in short itself.
        self._short: bool = screen.live and above is not None and (above._short or above._children > _TOLD)
        self._outputs = outputs
        self._errors = errors
        self._id = run.id[:4]
        self._name = f"[{self._id}] "
        self._row: Row = Row(parent=above._row if above is not None else None)
        if above is None:
            self._row.spent = lambda: spent(run)
        else:
            asked = run.inputs.get("prompt")
            self._row.about = one_line(asked, 60) if isinstance(asked, str) else ""
        self._turns: int | None = None
        self._turn = 0
        self._activity = "starting"
        self._margin = ""
        self._flying: dict[int, str] = {}
        self._done = self._failed = 0
        self._code = ""
        self._reported = time.monotonic()
        self._update()
        screen.add(self._row)

    def show(self, event: ev.Event) -> None:
        """Append what ``event`` says and bring the live row up to date."""
        # One event's lines stay together when several runs write.
        with self.screen.lock:
            self._margin = "| " * event.depth
            self._show(event)
            self._update()

    def close(self) -> None:
        """Take the row away; the screen goes with its last run."""
        if self._above is not None:
            self._above._children -= 1
        self.screen.remove(self._row)
        screens.release(self.screen)

    def _show(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self._turns = event.limits.get("max_iters")
                self._activity = "starting the sandbox"
                self._line(f"rlm {self._id}: {self._row.about or one_line(event.signature, 200)}", "bold")
                for name, summary in event.variables.items():
                    self._line(f"{name}: {one_line(summary, 160)}", "dim", 2)
            case ev.SessionOpened():
                self._opened(event)
            case ev.TurnStarted():
                self._turn = event.turn
                self._activity = "asking the model"
                self._new_turn()
                self._line(f"{self._turn_label()} ({event.at:.1f} s)", "bold cyan")
            case ev.Acted():
                self._activity = "running code"
                self._code = event.code
                self._acted(event)
            case ev.CallStarted():
                self._flying[event.call] = f"{event.name}: {event.preview}"
            case ev.CallEnded():
                self._call_ended(event)
            case ev.Executed():
                self._executed(event)
            case ev.Compacted():
                saved = f"{event.tokens_before:,} to {event.tokens_after:,} tokens"
                self._line(f"conversation compacted from {saved} {one_line(event.summary, 200)}".strip(), "dim")
            case ev.LimitStruck():
                self._activity = "asking for the best answer so far"
                where = {"act": " while asking the model", "execute": " while running code"}.get(event.where, "")
                self._line(f"stopped{where}: {event.limit}", "yellow")
            case ev.Extracted():
                if event.error:
                    self._line(f"no answer could be made of it: {brief(event.error)}", "red")
            case ev.Note():
                self._line(f"note: {_clip(event.message)}", "yellow")
            case ev.RunEnded():
                self._ended(event)

    def _opened(self, event: ev.SessionOpened) -> None:
        line = f"sandbox: {sandbox_text(event)}, {event.seconds:.2f} s"
        self._line(line, {True: "dim", None: "yellow", False: "bold red"}[event.confined])
        # Of a child it is the same as of its parent, which has said it.
        for missing in event.missing if event.depth == 0 else ():
            self._line(f"missing: {missing}", "yellow", 2)

    def _acted(self, event: ev.Acted) -> None:
        if event.error is not None:
            if event.reply.strip():
                self._line(f"reply: {one_line(event.reply, 300)}", "dim", 2)
            self._line(_clip(event.error), "red", 2)
            return
        if event.reasoning.strip():
            self._line(f"plan: {one_line(event.reasoning, 200)}", "", 2)
        elif self.screen.shared:
            self._line("code:", "", 2)
        if not self._short:
            self.screen.code(_clip(event.code), 4, self._prefix)

    def _call_ended(self, event: ev.CallEnded) -> None:
        self._flying.pop(event.call, None)
        self._done += event.error is None
        self._failed += event.error is not None
        if event.error is not None and self._failed <= _FAILURES_SHOWN:
            more = " (further failures of this turn are only counted)" if self._failed == _FAILURES_SHOWN else ""
            self._line(f"{event.name} failed: {one_line(event.error, 300)}{more}", "red", 2)
        now = time.monotonic()
        if not self.screen.live and now - self._reported >= _PROGRESS_SECONDS:
            self._reported = now
            self._line(f"calls: {self._calls()} ({event.at:.0f} s)", "dim", 2)

    def _executed(self, event: ev.Executed) -> None:
        calls = f", calls: {self._calls()}" if self._done or self._failed or self._flying else ""
        output, error = event.output, (event.error or "").strip()
        if event.submitted:
            # The outputs are shown, or printed, when the run ends.
            output = output[: max(0, output.rfind("FINAL: "))].rstrip("\n")
        self._line(f"ran {event.seconds:.2f} s{calls}{'' if event.output else ', no output'}", "dim", 2)
        if not output:
            return
        # The traceback or refusal comes after what was printed; only it is red.
        at = output.rfind(error) if error else len(output)
        at = max(0, at - len("[Error] ") if error and output[:at].endswith("[Error] ") else at)
        if output[:at].strip():
            self._line(_clip(output[:at].rstrip("\n")), "", 4)
        if output[at:].strip():
            self._line(_clip(output[at:]), "red", 4)

    def _ended(self, event: ev.RunEnded) -> None:
        usage = event.usage
        counts = [_count(usage.get("turns", 0), "turn"), _count(usage.get("calls", 0), "sub-call")]
        if usage.get("input_tokens") or usage.get("output_tokens"):
            counts.append(f"{usage.get('input_tokens', 0):,} tokens in, {usage.get('output_tokens', 0):,} out")
        at = f" ({event.limit})" if event.limit else ""
        styles = {"submitted": "bold green", "direct": "bold green", "extracted": "bold yellow"}
        style = styles.get(event.outcome, "bold red")
        about = f" ({self._row.about})" if self._short and self._row.about else ""
        self._line(f"{event.outcome}{at} in {event.seconds:.1f} s: {', '.join(counts)}{about}", style, always=True)
        if event.error and self._errors:
            cancelled = event.error in ("CancelledError", "KeyboardInterrupt")
            self._line("cancelled" if cancelled else f"error: {_clip(event.error)}", "red", 2)
        if self._outputs and event.outcome != "failed":
            for name, value in event.outputs.items():
                self._line(f"{name}: {value}", "", 2)

    def _new_turn(self) -> None:
        # What is still in flight from the turn before is counted until it ends.
        self._done = self._failed = 0
        self._reported = time.monotonic()

    def _turn_label(self) -> str:
        return f"turn {self._turn}/{self._turns}" if self._turns else f"turn {self._turn}"

    def _calls(self) -> str:
        parts = [(len(self._flying), "in flight"), (self._done, "done"), (self._failed, "failed")]
        return ", ".join(f"{count:,} {what}" for count, what in parts if count)

    def _update(self) -> None:
        name = self._name if self.screen.shared else ""
        self._row.label = f"{name}{self._turn_label()}" if self._turn else ""
        running = self._activity == "running code"
        calls = self._calls() if running else ""
        doing = self._activity
        if self._above is None:
            doing += f": {calls}" if calls else ""
            self._row.code = self._code if running else ""
            # Children have rows of their own.
            flying = [text for text in self._flying.values() if not text.startswith("rlm_query")] if running else []
            more = f" (and {len(flying) - 1:,} more)" if len(flying) > 1 else ""
            self._row.calls = (f"{one_line(flying[0], 90)}{more}",) if flying else ()
        elif running:
            # In one row: how far it is, then what it does.
            doing += f", {calls}" if calls else ""
            doing += f": {telling(self._code)}"
        self._row.doing = doing if self._turn else f"{name}{doing}"

    @property
    def _prefix(self) -> str:
        """Which run it is, where several are shown, and how deep in its tree."""
        return f"{self._name if self.screen.shared else ''}{self._margin}"

    def _line(self, text: str, style: str = "", indent: int = 0, *, always: bool = False) -> None:
        if self._short and not always:
            return
        self.screen.line(text, style, indent, self._prefix)


def sandbox_text(event: ev.SessionOpened) -> str:
    """A session in one line: its environment, its layers, and what it means if it does not confine the code."""
    layers = f" ({', '.join(event.layers)})" if event.layers else ""
    if event.confined is False:
        return f"{event.environment}{layers}, NOT CONFINED: code can reach this machine's files and network"
    if event.confined is None:
        return f"{event.environment}{layers}, which cannot say how far it confines code"
    return f"{event.environment}{layers}"


def _clip(text: str) -> str:
    """``text`` short enough to look at: the middle lines, then the middle characters, are left out."""
    lines = text[: _CHARS * 40].strip("\n").split("\n")
    cut = len(lines) - _LINES
    if cut > 1 and len(text) <= _CHARS * 40:
        head, tail = lines[: _LINES * 2 // 3], lines[-(_LINES // 3) :]
        text = "\n".join([*head, f"… {len(lines) - len(head) - len(tail):,} lines left out …", *tail])
    return shorten(text.strip("\n"), _CHARS)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
