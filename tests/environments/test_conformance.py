"""The shipped conformance suite, against every environment of this machine and a foreign interpreter."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from rlm_dspy import environments
from rlm_dspy.environments import conformance
from rlm_dspy.environments.base import Bound, Description
from rlm_dspy.environments.foreign import ForeignSession
from rlm_dspy.environments.inprocess import InProcess
from rlm_dspy.environments.subprocess_env import Subprocess

LIMIT = 60.0
TAGS = {"process", "interrupt", "kill", "values", "output", "files", "setup", "packages", "bounds"}
CLAIMS = {
    "network": "the_network_is_out_of_reach",
    "files": "files_of_the_host_are_out_of_reach",
    "secrets": "secrets_of_the_host_are_out_of_reach",
    "memory": "memory_is_bounded",
    "processes": "processes_are_bounded",
    "disk": "disk_is_bounded",
}
CASES: dict[str, Any] = {
    "subprocess": lambda: environments.get("subprocess", timeout=LIMIT),
    "inprocess": lambda: environments.get("inprocess", timeout=LIMIT),
    "bubblewrap": lambda: environments.get("local", timeout=LIMIT, layer="bubblewrap"),
    "landlock": lambda: environments.get("local", timeout=LIMIT, layer="landlock"),
    "ipython": lambda: environments.get("ipython", timeout=LIMIT),
    "ipython-inprocess": lambda: environments.get("ipython", shell="inprocess", timeout=LIMIT),
    "ipython-kernel": lambda: environments.get("ipython", shell="kernel", timeout=LIMIT),
}
HEAVY = ("ipython-kernel",)


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
    for name, make in CASES.items():
        reason = unavailable(name)
        place = make()
        for check in conformance.checks(skip=conformance.lacks(place)):
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            marks += [pytest.mark.heavy] if name in HEAVY else []
            found.append(pytest.param(place, check, id=f"{name}-{check.__name__}", marks=marks))
    return found


@pytest.mark.parametrize(("place", "check"), cases())
def test_environment(place: Any, check: Any, no_leaks: None) -> None:
    check(place)


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


def test_the_suite_has_sixty_checks_and_more() -> None:
    names = [check.__name__ for check in conformance.checks()]
    assert len(names) == len(set(names)) >= 60
    assert all(check.__doc__ and check.tags <= TAGS for check in conformance.checks())


def test_report() -> None:
    names = [check.__name__ for check in conformance.checks()]
    keep = {"show_vars", "syntax_errors"}
    report = conformance.run(InProcess(), skip=set(names) - keep)
    assert report.ok and set(report.passed) == keep and len(report.skipped) == len(names) - 2
    assert report.skipped["forks_do_no_harm"] == "left out"
    assert (
        conformance.run(InProcess(), skip=set(names) - {"forks_do_no_harm"})
        .skipped["forks_do_no_harm"]
        .startswith("the code has no process")
    )

    class Broken:
        async def open(self) -> None:
            raise OSError("no luck")

        async def close(self) -> None:
            pass

    report = conformance.run(Broken, skip=set(names) - {"show_vars"})  # type: ignore[arg-type]
    assert not report.ok and "no luck" in report.failed["show_vars"] and "1 failed" in str(report)


class Boaster(Subprocess):
    """Claims of a plain process what is not true."""

    def describe(self) -> Description:
        small = {"memory": 64 << 20, "processes": 16, "disk": 1 << 20}
        claims = {name: Bound("bounded", "so it says", small.get(name)) for name in CLAIMS}
        return Description("boaster", ("words",), **claims)


@pytest.mark.parametrize("check", [check for check in conformance.checks() if check.__name__ in CLAIMS.values()])
def test_a_claim_that_is_not_true_is_found_out(check: Any, no_leaks: None) -> None:
    with pytest.raises(AssertionError):
        check(Boaster())


def test_what_is_not_claimed_is_not_tried(no_leaks: None) -> None:
    report = conformance.run(Subprocess(), skip={c.__name__ for c in conformance.checks()} - {"memory_is_bounded"})
    assert report.skipped["memory_is_bounded"] == "memory: not bounded, and nothing else is claimed"
