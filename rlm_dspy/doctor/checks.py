"""All checks at the same time, each by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from functools import partial

from rlm_dspy.doctor import machine, model, sandbox, software
from rlm_dspy.doctor.finding import Check, Finding, problem, warning

FIRST = ("python", "packages", "dspy", "confinement")
"""Checks that run before the others and one after another: they import what the others use, and Python's imports of the
same modules in several threads at once may give one of them half a module."""
ESSENTIAL = ("packages", "dspy", "confinement", "sandbox")
"""Checks that fail only where runs would, too."""
CHECK_SECONDS = 30.0
"""Seconds after which a check is given up; most take milliseconds, a sandbox on a busy machine some seconds."""


def checks(
    *, model_name: str | None = None, api_base: str | None = None, call: bool = True, seconds: float = 4.0
) -> dict[str, Check]:
    """What `examine` runs, by name and in the order of the report."""
    return {
        "python": software.python,
        "packages": software.packages,
        "dspy": software.dspy,
        "confinement": sandbox.kernel,
        "sandbox": sandbox.sandbox,
        "processes": machine.processes,
        "temporary folder": machine.temporary_folder,
        "memory": machine.memory,
        "open files": machine.open_files,
        "cache": machine.cache,
        "model": partial(model.model, model_name, api_base, call, seconds),
        "embedded model": model.embedded,
        "extras": software.extras,
        "terminal": machine.terminal,
    }


def examine(
    model_name: str | None = None, api_base: str | None = None, *, call: bool = True, seconds: float = 4.0
) -> list[Finding]:
    """Look at this machine.

    Args:
        model_name: The language model to look at, as ``dspy.LM`` takes it, or ``local``; ``RLM_DSPY_MODEL`` if None,
            else the LM that ``dspy.configure`` was given.
        api_base: Base URL of its server; ``RLM_DSPY_API_BASE`` if None.
        call: Ask the model one short question, which may cost a fraction of a cent.
        seconds: How long it may take to answer.

    Returns:
        The findings, in a fixed order. Never raises but KeyboardInterrupt.
    """
    given = checks(model_name=model_name, api_base=api_base, call=call, seconds=seconds)
    first = [finding for name in FIRST for finding in run({name: given.pop(name)}, CHECK_SECONDS)]
    return first + run(given, CHECK_SECONDS + seconds)


def run(given: dict[str, Check], seconds: float) -> list[Finding]:
    """Run checks at the same time, each for at most ``seconds``; what one raises is its finding."""
    results: dict[str, list[Finding]] = {}

    def work(name: str, check: Check) -> None:
        results[name] = _findings(name, check)

    # Daemons: one that hangs does not keep the process. A thread each, as they wait more than they compute.
    threads = {name: threading.Thread(target=work, args=(name, check), daemon=True) for name, check in given.items()}
    inline: list[str] = []
    for name, thread in threads.items():
        try:
            thread.start()
        except RuntimeError:
            # No more threads may be started on this machine; that alone is worth knowing.
            inline.append(name)
    for name in inline:
        work(name, given[name])
    deadline = time.monotonic() + seconds
    for name, thread in threads.items():
        if name not in inline:
            thread.join(max(0.0, deadline - time.monotonic()))
    late = f"this check did not end within {seconds:.0f} seconds"
    return [
        finding
        for name in given
        for finding in results.get(name, [problem(name, late, "try again; if it stays so, please report it")])
    ]


def _findings(name: str, check: Check) -> list[Finding]:
    try:
        found: Iterable[Finding] = check()
        return list(found)
    except BaseException as error:
        from rlm_dspy.doctor.text import error_text

        tell = problem if name in ESSENTIAL else warning
        return [tell(name, f"this check itself failed: {error_text(error)}", "please report this")]
