"""``rlm-dspy ask``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import traceback
from typing import Any, TextIO

import dspy
from dspy.utils.exceptions import AdapterParseError

from rlm_dspy import RLM, documents, environments
from rlm_dspy import events as ev
from rlm_dspy._signals import woken_by_signals
from rlm_dspy.cli import exits, output, quiet
from rlm_dspy.cli.ask_options import UNLIMITED, prices
from rlm_dspy.cli.interrupts import Interrupts
from rlm_dspy.cli.models import models
from rlm_dspy.cli.out import OutFile
from rlm_dspy.cli.provider_errors import LastError
from rlm_dspy.console import ConsoleSubscriber, sandbox_text
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.limits import Limits
from rlm_dspy.redact import error_text
from rlm_dspy.render import brief, one_line
from rlm_dspy.run import Run

_INPUTS = ("context", "query")
_PLAN = 100
_UNREAD = "give it more turns (--max-iters), plainer outputs (--signature), or another model (--model)"


def run(options: argparse.Namespace) -> int:
    """Answer the question, print the answer, and return the exit code."""
    watch = _Watch()
    if not options.debug:
        quiet.libraries()
    try:
        with contextlib.ExitStack() as stack:
            return _ask(options, watch, stack)
    except (KeyboardInterrupt, asyncio.CancelledError):
        watch.error = "interrupted"
        code = exits.INTERRUPTED
        output.say("interrupted, no answer")
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        # Messages of our own are written for whoever typed the command; others need their type to be understood.
        usage = isinstance(error, ConfigurationError)
        watch.error = str(error) if usage else error_text(error)
        if usage and "prices=" in watch.error:
            watch.error += ". On the command line: --price MODEL=INPUT,OUTPUT"
        code = exits.USAGE if usage else exits.ERROR
        fix = None if usage else watch.lm_errors.fix(error)
        if fix is not None:
            output.say(fix)
            output.say(_was(watch.error))
        else:
            # What nobody knows the fix of is told whole.
            output.say(brief(watch.error) if isinstance(error, AdapterParseError) else watch.error)
    if options.json and watch.started:
        _give(options, watch, output.json_text(watch.report(None), pretty=watch.out is not None))
    return code


def _was(error: str) -> str:
    return f"the error was: {brief(error)}"


def _ask(options: argparse.Namespace, watch: _Watch, stack: contextlib.ExitStack) -> int:
    if not options.question.strip():
        raise ConfigurationError('the question is empty: rlm-dspy ask "How many lines are there?" FILE')
    watch.out = OutFile(options.out) if options.out not in (None, "-") else None
    program = _program(options)
    root, sub = models(options.model, options.sub_model, options.api_base, options.threads)
    program.sub_lm = sub
    found = _documents(options)
    progress = _Progress(options)
    stack.callback(progress.close)
    interrupts = Interrupts(progress.message)
    subscribers: list[ev.Subscriber] = [watch, progress, interrupts.subscriber, *_event_file(options, stack)]
    for subscriber in subscribers:
        stack.enter_context(ev.subscribe(subscriber))
    callbacks = [*(dspy.settings.callbacks or []), watch.lm_errors]
    with dspy.context(lm=root, callbacks=callbacks):
        prediction = asyncio.run(_answer(program, interrupts, {"context": found.context, "query": options.question}))
    progress.close()
    return _report(options, watch, prediction, bool(interrupts.count))


async def _answer(program: RLM, interrupts: Interrupts, inputs: dict[str, Any]) -> dspy.Prediction:
    task = asyncio.ensure_future(program.acall(**inputs))
    with woken_by_signals(task.get_loop()), interrupts.watching(task):
        return await task


def _program(options: argparse.Namespace) -> RLM:
    chosen = dict(options.env_opt)
    if options.strict:
        chosen["strict"] = "true"
    limits: dict[str, Any] = {
        name: None if value == UNLIMITED else value
        for name in sorted({*Limits.names(), "max_output_chars", "direct_below"})
        if (value := getattr(options, name, None)) is not None
    }
    try:
        environment = environments.from_options(options.interpreter, chosen)
        # One thing less for a small model to go wrong with.
        limits["adhoc"] = options.model != "local"
        limits["prices"] = prices(options.price or "")
        if options.load is not None:
            program = RLM.from_preset(options.load, options.signature, interpreter=environment, **limits)
        else:
            program = RLM(options.signature, interpreter=environment, **limits)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{error}") from error
    if set(program.signature.input_fields) != set(_INPUTS):
        raise ConfigurationError(
            f"--signature: the inputs must be {' and '.join(_INPUTS)}, as in "
            f"'context, query -> names: list[str], count: int'; got {options.signature!r}"
        )
    if options.interpreter == "inprocess":
        output.say("warning: --interpreter inprocess is not a sandbox: the model's code runs inside this very process")
    return program


def _documents(options: argparse.Namespace) -> documents.Documents:
    if documents.STDIN in options.files and sys.stdin is not None and sys.stdin.isatty() and not options.quiet:
        output.say("reading standard input; end it with Ctrl-D")
    found = documents.read(options.files, busy=_Busy(options))
    if not options.quiet:
        for note in found.notes:
            output.say(note)
    return found


class _Busy:
    """Says once that PDF and office files are being read, which may take longer than anything else before the run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._wanted = output.progress_wanted(options.quiet)

    def __call__(self, name: str) -> None:
        if self._wanted:
            self._wanted = False
            output.say(f"reading {name}")


def _give(options: argparse.Namespace, watch: _Watch, text: str) -> bool:
    if watch.out is None:
        output.answer(text)
        return True
    written = watch.out.write(text)
    if written and not options.quiet:
        output.say(f"written to {options.out}")
    return written


def _report(options: argparse.Namespace, watch: _Watch, prediction: dspy.Prediction, interrupted: bool) -> int:
    outcome = prediction.outcome
    outputs = {name: prediction[name] for name in dspy.Signature(options.signature).output_fields}
    reason = f"stopped: {outcome.limit}" if outcome.limit else "stopped by an error"
    if outcome == "failed":
        code = exits.INTERRUPTED if interrupted else exits.FAILED
        outputs = {name: value for name, value in outputs.items() if value is not None}
        rest = "; what it had found last is partial, and nobody has said that it is the answer" if outputs else ""
        output.say(f"{reason}, and no answer could be made of what was done{rest}")
    elif outcome == "extracted":
        code = exits.EXTRACTED
        output.say(f"{reason}; this is the best answer so far, not a submitted one")
    else:
        code = exits.SUBMITTED
    if outcome.error:
        unread = outcome.error.startswith("AdapterParseError")
        fix = _UNREAD if unread else None if interrupted else watch.lm_errors.fix()
        if fix is not None:
            output.say(fix)
        output.say(_was(outcome.error))
    written = True
    if options.json:
        trajectory = prediction.trajectory if options.json == "full" else None
        report = watch.report(outputs or None, trajectory)
        written = _give(options, watch, output.json_text(report, pretty=watch.out is not None))
    elif outcome != "failed":
        written = _give(options, watch, output.outputs_text(outputs))
    elif outputs:
        # Never in the place of an answer that --out may hold already.
        output.answer(output.outputs_text(outputs))
    return code if written else exits.ERROR


class _Watch:
    """An `rlm_dspy.events.Subscriber` that keeps what ``--json`` reports, for runs that end in an exception too."""

    def __init__(self) -> None:
        self.started = False
        self.error: str | None = None
        self.out: OutFile | None = None
        self.lm_errors = LastError()
        self._ended: ev.RunEnded | None = None

    def __call__(self, event: ev.Event, run: Run) -> None:
        if event.depth == 0 and isinstance(event, ev.RunStarted):
            self.started = True
        elif event.depth == 0 and isinstance(event, ev.RunEnded):
            self._ended = event

    def report(self, outputs: dict[str, Any] | None, trajectory: Any = None) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        ended = self._ended
        report: dict[str, Any] = {
            "outputs": outputs,
            "outcome": ended.outcome if ended else "failed",
            "limit": ended.limit if ended else None,
            "error": self.error or (ended.error if ended else None),
            "usage": ended.usage if ended else {},
            "seconds": ended.seconds if ended else None,
        }
        if trajectory is not None:
            report["trajectory"] = [
                {
                    "turn": turn.number,
                    **turn,
                    "error": turn.error,
                    "seconds": turn.seconds,
                    "calls": [{"name": name, "seconds": s, "error": error} for name, s, error in turn.calls],
                }
                for turn in trajectory
            ]
        return report


class _Progress:
    """An `rlm_dspy.events.Subscriber`: the console on a terminal, a line a turn elsewhere."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._quiet = options.quiet
        self._turns: int | None = None
        self._plan = ""
        self._warned = options.interpreter == "inprocess"
        self._console: ConsoleSubscriber | None = None
        if output.progress_wanted(options.quiet):
            color = False if options.no_color else None
            # Outputs and errors are printed in any case, with progress or without.
            self._console = ConsoleSubscriber(color=color, outputs=False, errors=False)

    def __call__(self, event: ev.Event, run: Run) -> None:
        if self._console is not None:
            self._console(event, run)
        elif not self._quiet and event.depth == 0:
            self._line(event)

    def _line(self, event: ev.Event) -> None:
        """What is to be known of ``event`` where nobody watches: a log gets one line a turn."""
        match event:
            case ev.SessionOpened():
                if event.confined is False and not self._warned:
                    output.say(f"warning: sandbox: {sandbox_text(event)}")
            case ev.RunStarted():
                self._turns = event.limits.get("max_iters")
            case ev.Acted():
                # Of a reply without code there is no plan; that it had none is said by the end of the turn.
                self._plan = "" if event.error else one_line(event.reasoning, _PLAN)
            case ev.TurnEnded():
                of = f"/{self._turns}" if self._turns else ""
                failed = " (it ended in an error)" if event.error else ""
                plan = f": {self._plan}" if self._plan else ""
                output.say(f"turn {event.turn}{of}, {event.at:.1f} s{plan}{failed}")

    def message(self, text: str) -> None:
        """A message that is shown also where progress is not."""
        if self._console is None or not self._console.message(text):
            output.say(text)

    def close(self) -> None:
        """Leave the terminal as it was found."""
        if self._console is not None:
            self._console.close()


def _event_file(options: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[ev.Subscriber, ...]:
    if not options.events:
        return ()
    try:
        file = _EventFile(open(options.events, "w", encoding="ascii"))
    except OSError as error:
        raise ConfigurationError(f"--events {options.events}: {error.strerror or error}") from error
    stack.callback(file.close)
    return (file,)


class _EventFile:
    """An `rlm_dspy.events.Subscriber` that writes events as JSON lines; a full disk is told once and ends no run."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._failed = False

    def __call__(self, event: ev.Event, run: Run) -> None:
        if self._failed:
            return
        try:
            self._file.write(json.dumps(output.plain(event.to_dict())) + "\n")
            self._file.flush()
        except OSError as error:
            self._failed = True
            output.say(f"--events: {error.strerror or error}; no more events are written")

    def close(self) -> None:
        """Close the file."""
        # Closing writes what is still buffered, which fails once more where writing did.
        with contextlib.suppress(OSError):
            self._file.close()
