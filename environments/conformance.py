"""What every session must do, as checks that anyone can run against a backend of their own.

    from rlm_dspy.environments import conformance

    @pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
    def test_my_environment(check):
        check(my_environment)                    # a zero-argument factory of sessions, such as an environment

    print(conformance.run(my_environment))       # or all at once; on the command line:
                                                 # rlm-dspy doctor --environment NAME --env-opt KEY=VALUE

A check fails by raising ``AssertionError``, and says by `Skip` (a ``unittest.SkipTest``) that it makes no sense for a
backend. What a backend cannot have it names itself, in `Environment.lacks`, by the names of checks or by their tags:

    process     code has a process of its own, which may die
    interrupt   cells can be interrupted
    kill        what resists an interrupt can be killed
    values      any value crosses exactly
    output      output of C code and child processes is captured
    files       sessions have a working folder of their own; ``files=``, ``upload`` and ``download`` work
    setup       ``setup_code=`` works
    packages    ``packages=`` works
    bounds      what `describe()` says is bounded is: for a stand-in of a place that confines nothing itself

What `describe()` claims is tried out; what it does not claim is skipped with that reason.
"""

from __future__ import annotations

import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlm_dspy.environments import (
    conformance_bounds,
    conformance_files,
    conformance_host,
    conformance_life,
    conformance_python,
)
from rlm_dspy.environments.conformance_base import Check, Factory, Skip, environment_of, registered

__all__ = ["Check", "Factory", "Report", "Result", "Skip", "checks", "lacks", "results", "run"]

# Importing these registers their checks.
_PARTS = (conformance_python, conformance_host, conformance_life, conformance_files, conformance_bounds)
registered.sort(key=lambda check: [part.__name__ for part in _PARTS].index(check.__module__))


@dataclass(frozen=True)
class Result:
    """What one check found.

    Attributes:
        name: Of the check.
        about: What it checks, in a sentence.
        status: ``"passed"``, ``"failed"`` or ``"skipped"``.
        detail: The reason of a skip, the traceback of a failure.
        seconds: How long it took.
    """

    name: str
    about: str
    status: Literal["passed", "failed", "skipped"]
    detail: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """What a run of the suite found.

    Attributes:
        passed: Names of checks.
        skipped: Name of each skipped check to the reason.
        failed: Name of each failed check to its traceback.
    """

    passed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if nothing failed."""
        return not self.failed

    def __str__(self) -> str:
        lines = [f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"]
        lines += [f"FAILED {name}\n{textwrap.indent(text, '    ')}" for name, text in self.failed.items()]
        return "\n".join(lines)


def checks(*, skip: Iterable[str] = ()) -> list[Check]:
    """All checks, without those whose name or one of whose tags is in ``skip``."""
    skipped = frozenset(skip)
    return [check for check in registered if check.__name__ not in skipped and not check.tags & skipped]


def lacks(factory: Factory) -> dict[str, str]:
    """What the backend says it cannot have: names or tags of checks to the reason (`Environment.lacks`)."""
    try:
        return dict(environment_of(factory).lacks)
    except Skip:
        return {}
    except Exception:
        # A factory that fails is what the checks are to report.
        return {}


def results(
    factory: Factory, *, skip: Iterable[str] | Mapping[str, str] = (), begin: Callable[[str], Any] = lambda name: None
) -> Iterator[Result]:
    """Run the suite, and give each result as it comes.

    Args:
        factory: Makes a fresh session at each call.
        skip: Names of checks, or tags, to leave out besides those that the backend lacks; with the reason, or without.
        begin: Told the name of each check that starts.
    """
    reasons = {**lacks(factory), **(skip if isinstance(skip, Mapping) else dict.fromkeys(skip, "left out"))}
    for check in registered:
        name, about = check.__name__, " ".join((check.__doc__ or "").split())
        why = next((reasons[word] for word in (name, *sorted(check.tags)) if word in reasons), None)
        if why is not None:
            yield Result(name, about, "skipped", why)
            continue
        begin(name)
        start = time.monotonic()
        try:
            check(factory)
        except Skip as error:
            yield Result(name, about, "skipped", str(error), time.monotonic() - start)
        except Exception:
            yield Result(name, about, "failed", traceback.format_exc(), time.monotonic() - start)
        else:
            yield Result(name, about, "passed", "", time.monotonic() - start)


def run(factory: Factory, *, skip: Iterable[str] | Mapping[str, str] = ()) -> Report:
    """Run the suite; arguments as for `results`."""
    report = Report()
    for result in results(factory, skip=skip):
        if result.status == "passed":
            report.passed.append(result.name)
        else:
            (report.skipped if result.status == "skipped" else report.failed)[result.name] = result.detail
    return report
