"""``rlm-dspy doctor --environment``: the conformance suite against one environment, watched as it runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlm_dspy.cli import exits, output

if TYPE_CHECKING:
    from rlm_dspy.environments.base import Environment
    from rlm_dspy.environments.conformance import Result

_COLOURS = {"passed": "32", "skipped": "33", "failed": "31"}
_RESOURCES = ("files", "network", "secrets", "memory", "processes", "disk", "time")
_STATUS, _NAME = 8, 46


def run(options: argparse.Namespace) -> int:
    """Print a line a check as it ends, then what failed; 0 if nothing did."""
    from rlm_dspy import environments
    from rlm_dspy._aio import run_sync
    from rlm_dspy.environments.conformance import checks
    from rlm_dspy.errors import ConfigurationError
    from rlm_dspy.redact import error_text

    try:
        environment = environments.from_options(options.environment, dict(options.env_opt))
    except ConfigurationError as error:
        output.say(str(error))
        return exits.USAGE
    names = [check.__name__ for check in checks()]
    wanted = [name for name in names if not options.check or any(word in name for word in options.check)]
    if not wanted:
        output.say(f"no check's name has {' or '.join(map(repr, options.check))} in it; there are {', '.join(names)}")
        return exits.USAGE
    screen = _Screen(options, len(wanted))
    start = time.monotonic()
    try:
        with screen.busy("starting it"):
            run_sync(_start(environment))
            about = environment.describe()
    except Exception as error:
        text = error_text(error, 4_000)
        if options.json:
            output.answer(json.dumps({"environment": environment.name, "error": text}, indent=2))
        else:
            output.answer(f"the {environment.name!r} environment does not start: {text}")
        return exits.ERROR
    if not options.json:
        layers = ", ".join(about.layers) or "no layers"
        screen.line(f"{about.environment}: {layers}; {'confined' if about.confined else 'not confined'}")
        for name in _RESOURCES:
            bound = getattr(about, name)
            screen.line(f"  {name}: {bound.level}{f', {bound.how}' if bound.how else ''}")
        for missing in about.missing:
            screen.line(f"  missing: {missing}")
        screen.line("")
    found = []
    for result in _results(environment, set(names) - set(wanted), screen):
        found.append(result)
        if not options.json:
            screen.result(result)
    _end(environment, found, about, time.monotonic() - start, options, screen)
    return exits.ERROR if any(result.status == "failed" for result in found) else exits.SUBMITTED


async def _start(environment: Environment) -> None:
    session: Any = environment()
    try:
        await session.open()
    finally:
        await session.close()


def _results(environment: Environment, others: set[str], screen: _Screen) -> Iterator[Result]:
    from rlm_dspy.environments import conformance

    for result in conformance.results(environment, skip=others, begin=screen.begin):
        if result.name not in others:
            yield result


def _end(
    environment: Environment,
    found: list[Result],
    about: Any,
    seconds: float,
    options: argparse.Namespace,
    screen: _Screen,
) -> None:
    from rlm_dspy.redact import redact

    counts = {status: sum(result.status == status for result in found) for status in _COLOURS}
    if options.json:
        rows = [{**dataclasses.asdict(result), "detail": redact(result.detail)} for result in found]
        description = dataclasses.asdict(about)
        whole = {"environment": environment.name, "describe": description, "summary": counts, "results": rows}
        output.answer(json.dumps(whole, indent=2))
        return
    for result in found:
        if result.status == "failed":
            screen.line(f"\nFAILED {result.name}: {result.about}")
            for line in redact(result.detail).splitlines():
                screen.line(f"    {line}")
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    screen.line(f"\n{len(found)} checks: {said}, in {seconds:.1f} s")


class _Screen:
    """Lines on standard output, and what is under way on standard error where that is a terminal."""

    def __init__(self, options: argparse.Namespace, total: int) -> None:
        self._live = output.progress_wanted(options.json)
        self._total, self._number = total, 0
        terminal = output.is_terminal(sys.stdout)
        self._width = shutil.get_terminal_size((100, 24)).columns if terminal else 100
        plain = options.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._color = terminal and not plain

    def busy(self, what: str) -> _Busy:
        """A context in which ``what`` is said to be under way."""
        return _Busy(self._live, what)

    def begin(self, name: str) -> None:
        """A check starts."""
        self._number += 1
        if self._live:
            text = f"{self._number}/{self._total} {name} ..."
            print(f"\r\x1b[K{text[: self._width - 1]}", end="", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        """One line, whole."""
        from rlm_dspy.render import printable

        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        output.page("\n".join(printable(part) for part in text.split("\n")))

    def result(self, result: Result) -> None:
        """The line of a check that has ended."""
        reason = " ".join((result.detail if result.status == "skipped" else _reason(result)).split())
        room = max(20, self._width - _STATUS - _NAME - 10)
        reason = reason if len(reason) <= room or result.status == "skipped" else reason[: room - 1] + "…"
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        from rlm_dspy.redact import redact
        from rlm_dspy.render import printable

        mark = f"{result.status:<{_STATUS}}"
        if self._color:
            mark = f"\x1b[{_COLOURS[result.status]}m{mark}\x1b[0m"
        took = f"{result.seconds:6.1f} s" if result.status != "skipped" else " " * 8
        output.page(f"{mark} {printable(result.name):<{_NAME}} {took}  {printable(redact(reason))}".rstrip())


def _reason(result: Result) -> str:
    lines = result.detail.strip().splitlines()
    return lines[-1] if lines else ""


class _Busy:
    def __init__(self, live: bool, what: str) -> None:
        self._live, self._what = live, what

    def __enter__(self) -> None:
        if self._live:
            print(f"{self._what} ...", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._live:
            # Gone when there is something to tell, or Ctrl-C was typed.
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
