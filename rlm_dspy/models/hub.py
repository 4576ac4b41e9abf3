"""Bytes from the model hub, resumed where they broke off.

By the public helpers of huggingface_hub, so that the user's endpoint, token, proxy and offline switch are honoured
(``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE``, ...). Its own download begins anew in each process, so the stream
is read here.
"""

from __future__ import annotations

import os
import re
import threading
from typing import Any

from rlm_dspy.errors import LocalModelError
from rlm_dspy.models.job import Job, SourceUnavailable, plain_error

_REACH_SECONDS = 6.0
"""How long the hub may take to say that it has the file, names looked up and all. Where it is not reached, the user
waits for this long and no longer."""
_READ_SECONDS = 30.0
_NOTE_BYTES = 16 << 20
_ATTEMPTS = 3
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch(job: Job) -> None:
    """Bring the file of ``job`` from the hub.

    Raises:
        SourceUnavailable: The hub is not reached, or does not have it; another source may.
        LocalModelError: The disk is full.
    """
    model = job.model
    if model.repo is None or model.repo_file is None:
        raise SourceUnavailable("it is not on the model hub")
    try:
        import huggingface_hub
    except ImportError:
        raise SourceUnavailable("huggingface_hub is not installed: pip install 'rlm-dspy[local]'") from None
    cached = huggingface_hub.try_to_load_from_cache(model.repo, model.repo_file, revision=model.revision)
    if isinstance(cached, str):
        job.take(cached)
        return
    if huggingface_hub.is_offline_mode():
        raise SourceUnavailable("HF_HUB_OFFLINE is set")
    # Its own reading of the variable is that of the moment when it was imported.
    endpoint = os.environ.get("HF_ENDPOINT") or None
    url = huggingface_hub.hf_hub_url(model.repo, model.repo_file, revision=model.revision, endpoint=endpoint)
    stated = _within(_REACH_SECONDS, lambda: huggingface_hub.get_hf_file_metadata(url, timeout=_REACH_SECONDS))
    if stated.size is None:
        raise SourceUnavailable("the hub does not say how large the file is")
    if stated.etag and _SHA256.fullmatch(stated.etag):
        # The hub names large files by their SHA-256.
        job.stated(stated.etag)
    job.open(stated.size)
    _stream(job, url)


def _stream(job: Job, url: str) -> None:
    failures = 0
    while (start := job.partial.prefix) < job.partial.size:
        try:
            _read(job, url, start)
        except (LocalModelError, SourceUnavailable):
            raise
        except Exception as error:
            failures = 0 if job.partial.prefix > start else failures + 1
            if failures >= _ATTEMPTS:
                raise SourceUnavailable(f"the download broke off: {plain_error(error)}") from error
            job.pause(failures)
        else:
            if job.partial.prefix == start:
                raise SourceUnavailable("the hub sent nothing")


def _read(job: Job, url: str, start: int) -> None:
    import huggingface_hub
    from huggingface_hub.utils import build_hf_headers

    headers = {**build_hf_headers(), "Range": f"bytes={start}-", "Accept-Encoding": "identity"}
    session = huggingface_hub.get_session()
    with session.stream("GET", url, headers=headers, timeout=_READ_SECONDS, follow_redirects=True) as answer:
        if answer.status_code not in (200, 206):
            raise SourceUnavailable(f"the hub answered {answer.status_code}{_hint(answer.status_code)}")
        if answer.status_code == 200:
            # It does not do ranges, so what it sends begins at the beginning.
            start = 0
        noted = at = start
        try:
            with job.writing(start) as write:
                for chunk in answer.iter_bytes():
                    chunk = chunk[: job.partial.size - at]
                    write(chunk)
                    at += len(chunk)
                    job.progress.update(max(at, job.partial.done))
                    if at >= job.partial.size:
                        break
                    if at - noted >= _NOTE_BYTES:
                        job.partial.add(start, at)
                        noted = at
        finally:
            # Ctrl-C comes through here too.
            job.partial.add(start, at)


def _within(seconds: float, call: Any) -> Any:
    """What ``call`` returns; looking up a name takes as long as it takes and cannot be told otherwise."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="model-hub-reach", daemon=True)
    thread.start()
    thread.join(seconds + 1)
    if not outcome:
        raise SourceUnavailable(f"the hub did not answer within {seconds:g} s")
    value, error = outcome[0]
    if error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        raise SourceUnavailable(f"{plain_error(error)}{_hint(status)}") from error
    return value


def _hint(status: int | None) -> str:
    if status in (401, 403):
        return " (a private or gated repository needs HF_TOKEN)"
    if status == 404:
        return " (no such repository, file or revision, or one that needs HF_TOKEN)"
    return ""
