"""Python, the installed versions, DSPy's import, extras."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

from rlm_dspy.doctor.finding import Finding, ok, problem, warning
from rlm_dspy.doctor.text import error_text, pip

DISTRIBUTION = "rlm-dspy"
PYTHON = (3, 11)
_REPORTED = ("dspy", "litellm", "pydantic", "openai")
_HIDDEN_EXTRAS = ("dev", "all")


def python() -> Iterator[Finding]:
    """The interpreter's version, and the system it runs on."""
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable or 'an unknown place'}"
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if sys.version_info < PYTHON:
        wanted = ".".join(map(str, PYTHON))
        yield problem("python", found, f"install Python {wanted} or newer, and rlm-dspy into it", details=(system,))
    elif platform.python_implementation() != "CPython":
        yield warning("python", found, "use CPython: nothing else is tested", details=(system,))
    else:
        yield ok("python", found, details=(system,))


def packages() -> Iterator[Finding]:
    """This package and what it needs, against the bounds it declares."""
    import rlm_dspy

    try:
        own = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        yield problem(
            "packages",
            f"rlm-dspy {rlm_dspy.__version__} is imported from a folder and not installed",
            "in the checkout: " + pip("-e", "."),
        )
        return
    wrong = list(_wrong([r for r in _requirements(own) if _extra(r) is None]))
    versions = ", ".join(f"{name} {version}" for name in _REPORTED if (version := _version(name)))
    found = f"rlm-dspy {rlm_dspy.__version__}; {versions}"
    if own.version != rlm_dspy.__version__:
        wrong.append(f"the installed metadata is of version {own.version}")
    if wrong:
        needed = [_plain(r) for r in _requirements(own) if _extra(r) is None]
        yield problem("packages", "; ".join(wrong), pip(*needed), details=(found,))
    else:
        yield ok("packages", found)


def dspy() -> Iterator[Finding]:
    """Whether DSPy can really be imported, which is more than its being installed."""
    start = time.monotonic()
    try:
        import dspy
    except Exception as error:
        yield problem("dspy", f"import dspy fails: {error_text(error)}", pip("--force-reinstall", "dspy>=3.4,<3.6"))
        return
    seconds = time.monotonic() - start
    yield ok("dspy", f"{dspy.__version__} is imported" + (f" in {seconds:.1f} s" if seconds > 0.05 else ""))


def extras() -> Iterator[Finding]:
    """Which optional parts are installed, and the line that brings each of the others."""
    try:
        own = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return
    have: list[str] = []
    lacking: dict[str, list[str]] = {}
    wrong: dict[str, list[str]] = {}
    for extra in own.metadata.get_all("Provides-Extra") or []:
        if extra in _HIDDEN_EXTRAS:
            continue
        requirements = [r for r in _requirements(own) if _extra(r) == extra]
        missing = [r.name for r in requirements if _version(r.name) is None]
        if missing:
            lacking[extra] = missing
        elif bad := list(_wrong(requirements)):
            wrong[extra] = bad
        elif requirements:
            have.append(extra)
    for extra, bad in wrong.items():
        yield warning(f"extra {extra}", "; ".join(bad), pip(f"rlm-dspy[{extra}]"))
    if have:
        yield ok("extras", f"installed: {', '.join(have)}")
    for extra, missing in lacking.items():
        lacks = f"not installed, optional ({', '.join(missing)})"
        yield ok(f"extra {extra}", lacks, f"pip install 'rlm-dspy[{extra}]'")


def _requirements(own: importlib.metadata.Distribution) -> list[Any]:
    from packaging.requirements import Requirement

    return [Requirement(text) for text in own.requires or []]


def _extra(requirement: Any) -> str | None:
    """The extra that a requirement belongs to; None for one that always holds."""
    text = str(requirement.marker or "")
    _, found, rest = text.partition("extra ==")
    return rest.strip().strip("\"'").split('"')[0].split("'")[0] if found else None


def _wrong(requirements: list[Any]) -> Iterator[str]:
    for requirement in requirements:
        version = _version(requirement.name)
        if version is None:
            yield f"{requirement.name} is not installed"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} {version} is installed, and {requirement.specifier} is needed"


def _plain(requirement: Any) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
