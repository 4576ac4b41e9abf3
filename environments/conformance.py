"""What every session must do, as checks that anyone can run against a backend of their own.

    from rlm_dspy.environments import conformance

    @pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
    def test_my_environment(check):
        check(my_environment)                    # a zero-argument factory of sessions, such as an environment

    print(conformance.run(my_environment))       # or all at once

A check fails by raising ``AssertionError``. Checks carry ``tags``: what a backend must have for the check to make
sense (``process``: code has a process of its own; ``interrupt``: cells can be interrupted; ``kill``: what resists an
interrupt can be killed; ``values``: any value crosses exactly; ``output``: output of C code and child processes is
captured). A backend without one skips it by name.
"""

from __future__ import annotations

import textwrap
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field

from rlm_dspy.environments import conformance_host, conformance_python
from rlm_dspy.environments.conformance_base import Check, Factory, registered

__all__ = ["Check", "Factory", "Report", "checks", "run"]

# Importing these registers their checks.
_PARTS = (conformance_python, conformance_host)


@dataclass
class Report:
    """What a run of the suite found.

    Attributes:
        passed, skipped: Names of checks.
        failed: Name of each failed check to its traceback.
    """

    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
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


def run(factory: Factory, *, skip: Iterable[str] = ()) -> Report:
    """Run the suite.

    Args:
        factory: Makes a fresh session at each call.
        skip: Names of checks, or tags, to leave out.
    """
    report = Report()
    chosen = checks(skip=skip)
    for check in registered:
        if check not in chosen:
            report.skipped.append(check.__name__)
            continue
        try:
            check(factory)
        except Exception:
            report.failed[check.__name__] = traceback.format_exc()
        else:
            report.passed.append(check.__name__)
    return report
