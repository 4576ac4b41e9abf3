"""What leans on unpromised parts of the providers' SDKs. Each is without effect where a version lacks the part; the
tests that name it say what then breaks."""

from __future__ import annotations

from typing import Any


def forget_output(handle: Any) -> None:
    """Drop the output that a command handle of e2b has kept for its result, which nobody asks for.

    Versions that take ``retain_output=False`` keep none; of older ones a session's output would stay in memory.
    """
    for name in ("_stdout_chunks", "_stderr_chunks"):
        kept = getattr(handle, name, None)
        if isinstance(kept, list):
            kept.clear()


def do_not_reconnect(process: Any) -> None:
    """Let the stream of a prime-sandboxes process end where it breaks.

    The SDK would connect again and go on, without what was printed in between: a stream of frames with a hole.
    """
    if getattr(process, "_reconnect", None) is not None:
        process._reconnect = None
