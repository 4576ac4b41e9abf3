"""What a root's LM is writing, while it writes: for subscribers that want it, and for DSPy's stream listeners.

DSPy hands the pieces of a streamed reply to ``dspy.settings.send_stream``. For the time of one request of a root a
`Writing` stands in its place: it makes `rlm_dspy.events.TextDelta` events, and where ``dspy.streamify`` listens, the
fields ``reasoning`` and ``code``, which DSPy's listeners would not find in a reply of the plain dialect.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import dspy
from dspy.streaming import StreamListener, StreamResponse

from rlm_dspy import _compat
from rlm_dspy import events as ev

if TYPE_CHECKING:
    from rlm_dspy.run import Run

_MARKER = re.compile(r"\[\[ ## (\w+) ## \]\]")
_ROLES = frozenset({"act", "extract", "direct"})
_PYTHON = ("", "py", "python", "python3", "py3", "repl")
_BEGINNINGS = ("```", "~~~", "[[ ## ")


class Fields:
    """Tells ``reasoning`` from ``code`` in a reply while it comes: prose, and what stands in fenced blocks.

    A line that may become a fence or one of DSPy's field markers is held back until that is known. What is taken for
    code in the end is settled when all of the reply is there (`rlm_dspy.signatures.dialect.find_code`): of a reply that
    keeps to the form that is the same.
    """

    def __init__(self) -> None:
        self._line = ""
        self._held = ""
        self._fence: str | None = None
        self._blocks = 0
        self.field: str | None = "reasoning"

    def push(self, text: str) -> Iterator[tuple[str, str]]:
        """The pieces, each with its field, that ``text`` completes."""
        for part in re.findall(r"[^\n]*\n|[^\n]+", text):
            self._line += part
            whole = self._line.endswith("\n")
            if self._held or (self._line == part and self._may_turn(self._line)):
                self._held = self._line
                if not whole and self._may_turn(self._line):
                    continue
                piece, self._held = self._held, ""
                blocks = self._blocks
                if not (whole and self._turns(piece)) and self.field is not None:
                    yield self.field, piece
                elif self._blocks > max(blocks, 1):
                    yield "code", "\n"
            elif self.field is not None:
                yield self.field, part
            if whole:
                self._line = ""

    def end(self) -> Iterator[tuple[str, str]]:
        """What was held back to the end."""
        held, self._held = self._held, ""
        if held and not self._turns(held) and self.field is not None:
            yield self.field, held

    @staticmethod
    def _may_turn(line: str) -> bool:
        bare = line.lstrip(" \t").rstrip("\n")
        return any(bare.startswith(mark) or mark.startswith(bare) for mark in _BEGINNINGS)

    def _turns(self, line: str) -> bool:
        """Whether ``line`` is a fence or marker; goes on with the field that it begins."""
        bare = line.strip()
        if (marker := _MARKER.match(bare)) is not None:
            self.field = marker[1] if marker[1] in ("reasoning", "code") else None
            self._fence = None
            return True
        if not bare.startswith(_BEGINNINGS[:2]):
            return False
        info = bare.lstrip(bare[0])
        if self._fence is not None:
            if info or not bare.startswith(self._fence):
                return False
            # A block in another language is prose, with its fences.
            ours, self._fence, self.field = self.field == "code", None, "reasoning"
            return ours
        self._fence = bare[: len(bare) - len(info)]
        if info.strip().lower() not in _PYTHON:
            return False
        self._blocks += 1
        self.field = "code"
        return True


class Writing:
    """Stands in for DSPy's send stream during one request of a root.

    Args:
        run: Its run.
        role: Who writes: "act", "extract" or "direct".
        outer: DSPy's own stream, or what stands in for it; None where nobody listens.
        listeners: Those of ``outer`` on ``act``, for which fields are told apart.
    """

    def __init__(self, run: Run, role: str, outer: Any, listeners: list[StreamListener]) -> None:
        self._run = run
        self._role = role
        self._outer = outer
        self._listeners = {listener.signature_field_name: listener for listener in listeners}
        self._request = next(run.requests)
        self._fields = Fields()
        self._ended: set[str] = set()
        self._begun: set[str] = set()
        self._space: dict[str, str] = {}

    async def send(self, item: Any) -> None:
        """Take what DSPy streams."""
        delta = getattr(item.choices[0], "delta", None) if getattr(item, "choices", None) else None
        for name in ("reasoning_content", "content"):
            text, thought = getattr(delta, name, None), name != "content"
            if isinstance(text, str) and text:
                turn, role = self._run.turn, self._role
                self._run.events.pass_on(
                    ev.TextDelta(turn=turn, role=role, request=self._request, text=text, reasoning=thought)
                )
                if self._listeners and not thought:
                    await self._send_fields(self._fields.push(text))
        if self._outer is not None and not self._listeners:
            await self._outer.send(item)

    async def end(self) -> None:
        """The reply is complete."""
        if not self._listeners:
            return
        await self._send_fields(self._fields.end())
        for name in self._begun - self._ended:
            await self._send(name, "", last=True)

    async def _send_fields(self, pieces: Iterator[tuple[str, str]]) -> None:
        for name, text in pieces:
            if name == "code" and "reasoning" in self._begun - self._ended:
                await self._send("reasoning", "", last=True)
            if name in self._ended:
                continue
            # Fields are stripped: the space before waits for what comes after it.
            text = self._space.pop(name, "") + text
            kept = text.rstrip()
            self._space[name] = text[len(kept) :]
            if name not in self._begun:
                kept = kept.lstrip("\n" if name == "code" else None)
                self._space[name] = self._space[name] if kept else ""
            if kept:
                self._begun.add(name)
                await self._send(name, kept, last=False)

    async def _send(self, name: str, text: str, *, last: bool) -> None:
        if last:
            self._ended.add(name)
        if (listener := self._listeners.get(name)) is not None:
            await self._outer.send(StreamResponse(listener.predict_name or "act", name, text, is_last_chunk=last))


@contextlib.asynccontextmanager
async def writing(run: Run, role: str, predictor: Any, lm: Any) -> AsyncIterator[None]:
    """Tell what the LM of ``run``'s root writes inside, where somebody wants it and the LM streams.

    Args:
        run: Its run.
        role: What is asked; see `rlm_dspy.usage.Key`. Where it is none of the root's, all stays as DSPy has it.
        predictor: Which makes the request.
        lm: Which answers it.
    """
    outer = dspy.settings.send_stream
    wanted = run.events.passes_on and role in _ROLES
    if outer is None and not wanted:
        yield
        return
    if not _compat.can_stream(lm):
        with dspy.context(send_stream=None):
            yield
        return
    if role not in _ROLES:
        yield
        return
    all_listeners = list(dspy.settings.stream_listeners or []) if outer is not None else []
    ours = [listener for listener in all_listeners if listener.predict is predictor]
    if all_listeners and not ours:
        outer = None
    fields = ours if role == "act" else []
    if fields and _within(run, predictor):
        # Children write at the same time as each other, and a listener cannot tell them apart.
        outer, fields = None, []
    if outer is None and not wanted:
        with dspy.context(send_stream=None):
            yield
        return
    stream = Writing(run, role, outer, fields)
    # DSPy's LiteLLM engine asks for the usage of a streamed reply only where usage is tracked by its own setting.
    with dspy.context(send_stream=stream, stream_listeners=[], track_usage=True):
        try:
            yield
        finally:
            await stream.end()


def _within(run: Run, predictor: Any) -> bool:
    """Whether a run around ``run`` has the same predictor for its root, as that of a child has."""
    above = run.parent
    while above is not None and above.program.act is not predictor:
        above = above.parent
    return above is not None
