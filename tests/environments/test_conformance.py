"""The shipped conformance suite, against every environment of this machine and a foreign interpreter."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from rlm_dspy import environments
from rlm_dspy.environments import conformance
from rlm_dspy.environments.foreign import ForeignSession
from rlm_dspy.environments.inprocess import InProcess
from rlm_dspy.environments.subprocess_env import Subprocess

LIMIT = 60.0
CASES = {
    "subprocess": (lambda: Subprocess(timeout=LIMIT)(), ()),
    "inprocess": (lambda: InProcess(timeout=LIMIT)(), ("process", "output", "kill")),
    "bubblewrap": (lambda: environments.get("local", timeout=LIMIT, layer="bubblewrap")(), ()),
    "landlock": (lambda: environments.get("local", timeout=LIMIT, layer="landlock")(), ()),
    "ipython": (lambda: environments.get("ipython", timeout=LIMIT)(), ()),
    "ipython-inprocess": (
        lambda: environments.get("ipython", shell="inprocess", timeout=LIMIT)(),
        ("process", "output", "kill"),
    ),
    # A kernel has threads of its own, which complain about descriptors that code has closed under them.
    "ipython-kernel": (
        lambda: environments.get("ipython", shell="kernel", timeout=LIMIT)(),
        ("closed_descriptors_do_no_harm",),
    ),
}


def unavailable(name: str) -> str | None:
    """Why a layer of ``local`` cannot run on this machine."""
    if name not in ("bubblewrap", "landlock"):
        return None
    try:
        environments.get("local", layer=name).open().close()
    except Exception as error:
        return str(error)
    return None


def cases() -> list[Any]:
    found = []
    for name, (factory, skip) in CASES.items():
        reason = unavailable(name)
        for check in conformance.checks(skip=skip):
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            found.append(pytest.param(factory, check, id=f"{name}-{check.__name__}", marks=marks))
    return found


@pytest.mark.parametrize(("factory", "check"), cases())
def test_environment(factory: Any, check: Any, no_leaks: None) -> None:
    check(factory)


@pytest.mark.parametrize(
    "check",
    [
        check
        for check in conformance.checks(skip=("process", "output", "values", "interrupt", "kill"))
        if check.__name__
        in ("state_persists", "functions_call_later_functions", "global_and_nonlocal",
            "host_calls_overlap", "inputs_may_be_rebound", "assignments_before_an_error_stay")
    ],
    ids=lambda check: check.__name__,
)  # fmt: skip
def test_a_foreign_interpreter_does_what_it_can(check: Any, no_leaks: None) -> None:
    check(lambda: ForeignSession(dspy.LocalInterpreter, timeout=LIMIT))


def test_report() -> None:
    names = [check.__name__ for check in conformance.checks()]
    assert len(names) == len(set(names)) > 30
    keep = {"show_vars", "syntax_errors"}
    report = conformance.run(InProcess(), skip=set(names) - keep)
    assert report.ok and set(report.passed) == keep and len(report.skipped) == len(names) - 2

    class Broken:
        async def open(self) -> None:
            raise OSError("no luck")

    report = conformance.run(Broken, skip=set(names) - {"show_vars"})  # type: ignore[arg-type]
    assert not report.ok and "no luck" in report.failed["show_vars"] and "1 failed" in str(report)
