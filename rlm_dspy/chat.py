"""A chat request as the task of an RLM: long parts of the conversation as variables, all else in view.

The requests of DSPy's adapters are read as what they are: the fields of the last message become variables by their own
names (a list or dict is one again), and the paragraph on the form of the reply stays in view word for word. Of other
long messages the whole text becomes a variable, and its beginning and end stay in view. Nothing is lost: what is not in
view is in a variable.
"""

from __future__ import annotations

import copy
import json
import keyword
import re
import textwrap
from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy import reply_forms
from rlm_dspy.reply_forms import ReplyForm
from rlm_dspy.signatures import extract_signature
from rlm_dspy.signatures.answered import asks
from rlm_dspy.signatures.contract import SHORT
from rlm_dspy.signatures.predictor import RolePredict
from rlm_dspy.tools import CALL_NAMES, CORE_NAMES, is_reserved

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM

LONG = 2_000
"""Characters of a field that are still shown in view."""

VIEW = 24_000
"""Characters of the last message, of the system text, and of all earlier messages, that are shown in view each."""

HEAD, TAIL = 600, 1_400
"""Characters of the beginning and of the end of a long message without fields that stay in view."""

MOST = 60
"""Variables that are made of earlier messages at most; the rest are in the list `EARLIER`."""

EARLIER = "earlier_messages"

SYSTEM = ("system", "developer")
"""Roles that instruct rather than take part."""

_BASE = {"assistant": "earlier_reply", "system": "system_text", "developer": "system_text"}
_OBJECTIVE = "In adhering to this structure, your objective is:"
_DEFAULT = re.compile(r"Given the fields .*, produce the fields .*\.", re.DOTALL)
_DECLARED = re.compile(r"^\d+\. `(\w+)` \((.*?)\):", re.MULTILINE)


@dataclass(frozen=True)
class Message:
    """One message: ``role`` is ``"system"``, ``"developer"``, ``"user"`` or ``"assistant"``."""

    role: str
    text: str


@dataclass(frozen=True)
class Brief:
    """What an RLM is told of a chat request.

    Attributes:
        objective: What is to be done, as far as the request says it in a known place; else a sentence that sends the
            root to the last message.
        view: The conversation, with the names of variables in the place of long values.
        variables: The values by name; at least one.
        form: The form of the reply.
    """

    objective: str
    view: str
    variables: dict[str, Any]
    form: ReplyForm

    def program(self, rlm: RLM) -> RLM:
        """A view of ``rlm`` whose task is to write the reply; it is to be called with `variables`."""
        inputs: dict[str, Any] = {name: (type(value), dspy.InputField()) for name, value in self.variables.items()}
        signature = dspy.Signature({**inputs, **reply_forms.outputs(self.form)}, self.objective)
        view = copy.copy(rlm)
        view.callbacks, view.history = rlm.callbacks, []
        view.signature = signature
        view.extract = _extract(rlm.extract, signature)
        view.notes = (self.view,)
        view.__dict__.pop("direct", None)
        view.direct_below = None
        view._check()
        return view


def brief(messages: Sequence[Message], tools: Collection[str] = (), form: ReplyForm | None = None) -> Brief:
    """Tell an RLM of a conversation whose next reply is wanted.

    Args:
        messages: All messages in their order; the last one is what is replied to.
        tools: Names that no variable may have.
        form: The form of the reply; None for the one that the last message asks for.
    """
    first = next((n for n, message in enumerate(messages) if message.role not in SYSTEM), len(messages) - 1)
    system, rest = messages[:first], messages[first:]
    last_text, requirement = reply_forms.split_requirement(rest[-1].text)
    form = form or reply_forms.form_of(requirement)
    declared = declared_inputs("\n".join(message.text for message in system))
    names = _Names({*tools, *form.fields})
    variables: dict[str, Any] = {}

    last = _Excerpt(last_text, rest[-1].role, declared, last=True)
    last.hide(LONG, VIEW)
    variables |= last.name(names, every=True)
    shown = [_shown(rest[-1].role, "\n\n".join(part for part in (last.view(), requirement) if part))]

    left, earlier = VIEW, list(rest[:-1])
    while earlier:
        excerpt = _Excerpt(earlier[-1].text, earlier[-1].role, declared)
        excerpt.hide(LONG, VIEW)
        if len(variables) + len(excerpt.hidden) > MOST or excerpt.width > left:
            break
        left -= excerpt.width
        variables |= excerpt.name(names)
        shown.insert(0, _shown(earlier.pop().role, excerpt.view()))
    if earlier:
        name = names.take(EARLIER)
        variables[name] = [{"role": message.role, "content": message.text} for message in earlier]
        shown.insert(0, f"({len(earlier):,} earlier messages are in the variable `{name}`, as role and content each)")
    for message in reversed(system):
        excerpt = _Excerpt(message.text, message.role, {})
        excerpt.hide(VIEW, VIEW)
        variables |= excerpt.name(names)
        shown.insert(0, _shown(message.role, excerpt.view()))
    return Brief(_objective(system), _view(shown, form), variables, form)


def in_schema(told: Brief, response_format: Mapping[str, Any]) -> Brief:
    """``told``, with the JSON that a request wants by its ``response_format`` rather than in words.

    Args:
        told: What the request says in words.
        response_format: As ``dspy.lm15.Config`` has it.
    """
    if told.form.kind == "json" or response_format.get("type") == "text":
        return told
    schema = response_format.get("schema") or response_format.get("json_schema")
    wanted = f"The reply must be JSON that follows {json.dumps(schema)}" if schema else "The reply must be JSON"
    return replace(told, view=f"{told.view}\n\n{wanted}, and nothing else.")


def declared_inputs(system: str) -> dict[str, str]:
    """The input fields that the system message of a DSPy adapter lists, each with its type as text."""
    block = system.partition("Your input fields are:\n")[2].partition("\nYour output fields are:")[0]
    return dict(_DECLARED.findall(block))


def _objective(system: Sequence[Message]) -> str:
    text = "\n".join(message.text for message in system)
    told = textwrap.dedent(text.rpartition(_OBJECTIVE)[2]).strip() if _OBJECTIVE in text else ""
    if not told or len(told) > VIEW or _DEFAULT.fullmatch(told):
        return "Give what the last message of the conversation above asks for."
    return told


def _view(shown: list[str], form: ReplyForm) -> str:
    how = (
        "SUBMIT its whole text, in the form that is asked for."
        if form.kind == "text"
        else "SUBMIT the value of each of its fields alone: markers, tags and JSON are put round them for you."
    )
    return (
        f"Below is a conversation between a user and an assistant. Write the assistant's next reply. {how} Values that "
        "are too long to be shown are in the variables that are named in their place.\n\n"
        + "\n\n".join(shown)
        + "\n\n===== end of the conversation ====="
    )


def _shown(role: str, text: str) -> str:
    return f"===== {role} =====\n{text}"


@dataclass
class _Span:
    """A value within a message, and the name that it has there, ``""`` for the whole of a message."""

    start: int
    end: int
    field: str = ""

    @property
    def length(self) -> int:
        return self.end - self.start


class _Excerpt:
    """A message, and what of it is shown.

    Args:
        text: Its text.
        role: Who says it.
        declared: The input fields that messages of the user have, with their types.
        last: It is the message that is replied to.
    """

    def __init__(self, text: str, role: str, declared: dict[str, str], last: bool = False) -> None:
        self._text, self._role, self._declared, self._last = text, role, declared, last
        self.spans = (fields(text, list(declared)) if role == "user" else []) or [_Span(0, len(text))]
        self.hidden: list[_Span] = []
        self._named: dict[int, str] = {}

    @property
    def width(self) -> int:
        """Characters that are shown."""
        return len(self._text) - sum(span.length for span in self.hidden)

    def hide(self, most: int, all_together: int) -> None:
        """Take values out of view: those above ``most`` characters, and the longest until the rest has room."""
        for span in sorted(self.spans, key=lambda span: span.length, reverse=True):
            if span.length > most or (self.width > all_together and span.length > SHORT):
                self.hidden.append(span)

    def name(self, names: _Names, every: bool = False) -> dict[str, Any]:
        """Name the values that are not in view, or ``every`` one, and give them as variables."""
        variables: dict[str, Any] = {}
        for span in self.spans if every else self.hidden:
            text = self._text[span.start : span.end]
            # A short message without fields is what is asked.
            plain = "request" if self._last and len(text) <= SHORT else _BASE.get(self._role, "message")
            name = self._named[span.start] = names.take(span.field or plain)
            variables[name] = _value(text, self._declared.get(span.field, "str"))
        return variables

    def view(self) -> str:
        """The text with the names of variables in the place of what is not in view."""
        parts, at = [], 0
        for span in sorted(self.hidden, key=lambda span: span.start):
            name = self._named[span.start]
            note = f"(the value of the variable `{name}`: {span.length:,} characters)"
            if not span.field:
                note = f"(… all {span.length:,} characters of this message are in the variable `{name}` …)"
                head, tail = self._ends(span)
                note = "\n".join(part for part in (head, note, tail) if part)
            parts += [self._text[at : span.start], note]
            at = span.end
        return "".join([*parts, self._text[at:]])

    def _ends(self, span: _Span) -> tuple[str, str]:
        """Beginning and end of a message, cut where a line ends if there is one."""
        text = self._text
        factor = 8 if self._role in SYSTEM else 1
        head = text[span.start : span.start + HEAD * factor]
        tail = text[max(span.start + len(head), span.end - TAIL * factor) : span.end]
        head = head[: head.rfind("\n")] if "\n" in head.rstrip() else head
        tail = tail[tail.find("\n") + 1 :] if "\n" in tail.strip("\n") else tail
        return head, tail


def fields(text: str, names: list[str]) -> list[_Span]:
    """The values of the fields ``names`` in a message of DSPy's chat, JSON or XML adapter; none if they are not there.

    A value may hold markers itself, as a document about DSPy does, or one that means harm. Of the ways to read the
    message, all of which keep the order of the fields, that one counts which makes one value the longest: markers are
    more likely part of a long value than of short ones. Of readings that are alike in that, it is one whose long value
    is no question by its name, and then the one with fewer markers in the short values.
    """
    readings: list[list[_Span]] = []
    for opening, closing in (("[[ ## {} ## ]]\n", ""), ("<{}>\n", "\n</{}>")):
        places = {name: _places(text, opening.format(name)) for name in names}
        present = [name for name in names if places[name]]
        found = [_spans(text, present, places, turn, opening, closing) for turn in range(len(present))]
        found = [spans for spans in found if spans]
        longest = max((max(span.length for span in spans) for spans in found), default=0)
        near = [spans for spans in found if max(span.length for span in spans) >= longest - LONG]
        marks = sorted(place for name in present for place in places[name])
        readings += [min(near, key=lambda spans: _doubtful(spans, marks))] if near else []
    # What begins in the other form later on stands within a value.
    return min(readings, key=lambda spans: spans[0].start, default=[])


def _doubtful(spans: list[_Span], marks: list[int]) -> tuple[bool, int, int]:
    """What speaks against a reading: a long question, markers in all values but the longest, and empty values."""
    longest = max(spans, key=lambda span: span.length)
    inside = sum(bisect(marks, span.end) - bisect(marks, span.start - 1) for span in spans if span is not longest)
    return asks(longest.field), inside, sum(span.length == 0 for span in spans)


def _places(text: str, opening: str) -> list[int]:
    """Where ``opening`` stands at the beginning of ``text`` or of a paragraph."""
    starts = [0] if text.startswith(opening) else []
    starts += [found.start() + 2 for found in re.finditer(re.escape(f"\n\n{opening}"), text)]
    return starts


def _spans(
    text: str, names: list[str], places: dict[str, list[int]], turn: int, opening: str, closing: str
) -> list[_Span]:
    """The values if the fields up to the number ``turn`` begin at their first place, and the others at their last."""
    starts: list[int] = []
    for name in names[: turn + 1]:
        after = [place for place in places[name] if not starts or place > starts[-1]]
        if not after:
            return []
        starts.append(after[0])
    behind: list[int] = []
    for name in reversed(names[turn + 1 :]):
        before = [place for place in places[name] if place > starts[-1] and (not behind or place < behind[0])]
        if not before:
            return []
        behind.insert(0, before[-1])
    starts += behind
    ends = [*(start - 2 for start in starts[1:]), len(text)]
    spans = []
    for name, start, end in zip(names, starts, ends, strict=True):
        begin, close = start + len(opening.format(name)), closing.format(name)
        if close:
            at = text.rfind(close, begin, end)
            if at < 0:
                return []
            end = at
        spans.append(_Span(begin, max(begin, end), name))
    return spans


def _value(text: str, kind: str) -> Any:
    """A field's value: what its JSON says where it is a container, the text where it is none or cannot be read."""
    if kind in ("str", "History") or text[:1] not in ("[", "{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class _Names:
    """Gives out names for variables, each once."""

    def __init__(self, taken: Collection[str]) -> None:
        self._taken = {*taken, *CORE_NAMES, *CALL_NAMES, "budget", "history", "interpreter_factory"}

    def take(self, wanted: str) -> str:
        """``wanted``, or a name like it."""
        wanted = wanted.lstrip("_") or "value"
        name, number = wanted, 1
        while name in self._taken or is_reserved(name) or keyword.iskeyword(name) or hasattr(dspy.Signature, name):
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


def _extract(given: Any, signature: type[dspy.Signature]) -> RolePredict:
    """``extract`` for this reply, with the instructions and the LM of the program's own."""
    made = RolePredict(extract_signature(signature), role="extract")
    if isinstance(given, dspy.Predict):
        made.signature = made.signature.with_instructions(given.signature.instructions)
        made.lm = given.lm
    return made
