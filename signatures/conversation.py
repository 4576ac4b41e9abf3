"""The turns of one run, and how they become messages.

The message list only ever grows: what was sent once is sent again unchanged, so that each request is a prefix of the
next (one cached prefix at the provider, one training sample for K turns).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rlm_dspy.signatures.guidance import Guidance

Message = dict[str, Any]

EMPTY_REPLY = "(empty reply)"
"""What is sent back in the place of a reply without text."""

SYSTEM_CHARS = 2_000
"""About the characters of dialect and strategy."""
TRACED_CHARS = 600
TRACED_TURNS = 8


@dataclass(frozen=True)
class Exchange:
    """One turn as the endpoint sees it.

    Attributes:
        reply: The root's reply, byte for byte; ``""`` where it gave none.
        output: What came of it, truncated for good when first shown.
        status: The line on what is left, or ``""``; kept apart because it is contract, not trace.
        reasoning_content: The provider's separate reasoning text, sent back with the reply, or None.
        following: What follows in the same message: the next task, where a session goes on.
    """

    reply: str
    output: str
    status: str = ""
    reasoning_content: str | None = None
    following: str = ""

    def observation(self) -> str:
        """The user message that follows the reply."""
        return "\n\n".join(part for part in (f"Output:\n{self.output}", self.status, self.following) if part)


@dataclass
class Conversation:
    """The state that `rlm_dspy.signatures.adapter.ConversationAdapter` renders, one a run.

    Attributes:
        contract: The run's first message.
        exchanges: Its turns so far.
        reply: The last raw reply, set as soon as the LM has answered, also when nothing can be parsed from it.
        reasoning_content: The reasoning text that came with it, or None.
        sent: The messages of the last request of the root.
        replay_reasoning: Send ``reasoning_content`` back with the replies; for LMs that keep the two apart.
        extracting: The turns are over and the next request is ``extract``'s.
        demonstration: The messages of the built-in demonstration, empty if there is to be none.
        guidance: The aids that the root is given.
    """

    contract: str
    exchanges: list[Exchange] = field(default_factory=list)
    reply: str | None = None
    reasoning_content: str | None = None
    sent: list[Message] = field(default_factory=list)
    replay_reasoning: bool = False
    extracting: bool = False
    demonstration: list[Message] = field(default_factory=list)
    guidance: Guidance = field(default_factory=Guidance)

    def messages(self) -> list[Message]:
        """The contract and every turn, without system message and demonstrations."""
        rendered: list[Message] = [user(self.contract)]
        for exchange in self.exchanges:
            # Providers refuse an assistant message without text, and chat templates two user messages in a row.
            said = bool(exchange.reply.strip())
            reasoning = exchange.reasoning_content if said and self.replay_reasoning else None
            rendered.append(assistant(exchange.reply if said else EMPTY_REPLY, reasoning))
            rendered.append(user(exchange.observation()))
        return rendered

    def go_on(self, task: str) -> None:
        """Begin another task after all that was said; what has been sent stays as it is."""
        self.extracting = False
        self.reply = self.reasoning_content = None
        if not self.exchanges:
            self.contract = task
            return
        last = self.exchanges[-1]
        if not self.sent or self.sent[-1] != user(last.observation()):
            # Nobody has been told yet what is left of the old task.
            last = dataclasses.replace(last, status="")
        following = f"{last.following}\n\n{task}" if last.following else task
        self.exchanges[-1] = dataclasses.replace(last, following=following)

    def chars(self) -> int:
        """About the characters of the next request: contract, turns, demonstration and instructions."""
        turns = sum(len(e.reply) + len(e.output) + len(e.status) + len(e.following) for e in self.exchanges)
        return len(self.contract) + turns + sum(len(m["content"]) for m in self.demonstration) + SYSTEM_CHARS

    def traced_turns(self) -> list[dict[str, str]]:
        """The last turns, shortened and free of the contract: what traces, demos and reflection prompts hold."""
        return [
            {"reply": cut(exchange.reply, TRACED_CHARS), "output": cut(exchange.output, TRACED_CHARS)}
            for exchange in self.exchanges[-TRACED_TURNS:]
        ]


def user(text: str) -> Message:
    """A user message; lone surrogates, which no endpoint takes, are written out."""
    return {"role": "user", "content": sendable(text)}


def assistant(text: str, reasoning_content: str | None = None) -> Message:
    """An assistant message, with the reasoning text it came with where there is one."""
    message: Message = {"role": "assistant", "content": sendable(text)}
    if reasoning_content:
        message["reasoning_content"] = sendable(reasoning_content)
    return message


def sendable(text: str) -> str:
    r"""``text`` as valid Unicode: a lone surrogate becomes its ``\udXXX`` notation."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def cut(text: str, limit: int) -> str:
    """``text``, its middle left out where it is longer than ``limit`` characters (the note not counted)."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n[… {len(text) - limit:,} characters left out …]\n{text[len(text) - tail :]}"


_current: contextvars.ContextVar[Conversation | None] = contextvars.ContextVar("rlm_dspy_conversation", default=None)


def current() -> Conversation | None:
    """The conversation of the run in this context, or None outside a run."""
    return _current.get()


@contextlib.contextmanager
def conversing(conversation: Conversation) -> Iterator[None]:
    """Make ``conversation`` the current one for the root's calls made inside."""
    token = _current.set(conversation)
    try:
        yield
    finally:
        _current.reset(token)
