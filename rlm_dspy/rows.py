"""Requests to a language model and its replies, as rows to train it on: what traces and optimisers make them of.

A root's requests only ever grow, so the last of them holds all turns: `chains` puts each series of requests that begin
with one another into one `Chain`, K turns being one row. In a row only what the model itself wrote in this run is
trained on: every message of the assistant has a ``weight``, 1 for a reply of the run and 0 for what stood in its prompt
(demonstrations, turns from before a compaction) or is not worth learning (an empty reply, a turn that failed).

Trainers read that in different forms (`formed`):

    "weight"      {"messages": [{"role", "content", "weight"}]}   OpenAI's chat fine-tuning, Axolotl's ``weight``
    "train"       the same with ``"train": true`` or false        Tinker's cookbook (``TrainOnWhat.CUSTOMIZED``)
    "completion"  {"prompt": [...], "completion": [...]}          TRL's ``SFTTrainer`` with ``assistant_only_loss=True``
    "turns"       the same, a row for each reply                  TRL's, whatever the chat template; K turns are K rows
    "roles"       {"messages": [{"role", "content"}]}             prime-rl's SFT, DSPy's ``LM.finetune``

The last has no marks: such trainers take the loss over every message of a role. So demonstrations are left out of it,
and a row with another reply that is not to be trained on has no such form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.signatures.conversation import EMPTY_REPLY, assistant
from rlm_dspy.signatures.demonstration import FRESH

Message = dict[str, Any]
Form = Literal["weight", "train", "completion", "turns", "roles"]
FORMS: tuple[Form, ...] = get_args(Form)


@dataclass(frozen=True)
class Request:
    """One request and the reply to it.

    Attributes:
        messages: As they were sent: ``{"role", "content"}`` each.
        reply: The text of the reply, byte for byte.
        reasoning: Reasoning text that came in a field of its own, or None.
        trained: Whether the reply is worth learning.
        start: How many messages stand before what is asked: the system message and demonstrations. None to find out
            by what a root is told behind demonstrations; other calls then have none.
    """

    messages: list[Message]
    reply: str
    reasoning: str | None = None
    trained: bool = True
    start: int | None = None


@dataclass
class Chain:
    """Requests each of which begins with the one before it and the reply to that.

    Attributes:
        messages: The last request and its reply.
        replies: Place in ``messages`` of each reply of the chain, and whether it is trained on.
        start: Place of what is asked, behind demonstrations.
    """

    messages: list[Message]
    replies: dict[int, bool] = field(default_factory=dict)
    start: int = 0

    @property
    def trained(self) -> int:
        """How many replies are trained on."""
        return sum(self.replies.values())


def _start(messages: list[Message]) -> int:
    fresh = [n for n, m in enumerate(messages) if m["role"] == "user" and str(m["content"]).startswith(FRESH)]
    return fresh[-1] if fresh else next((n for n, m in enumerate(messages) if m["role"] != "system"), 0)


def chains(requests: Iterable[Request]) -> list[Chain]:
    """The chains of ``requests``, in their order."""
    found: list[Chain] = []
    for request in requests:
        said = request.reply if request.reply.strip() else EMPTY_REPLY
        whole = [*request.messages, assistant(said, request.reasoning)]
        place = len(request.messages)
        trained = request.trained and bool(request.reply.strip())
        last = found[-1] if found else None
        if last is not None and _same(whole[: len(last.messages)], last.messages):
            last.messages, last.replies[place] = whole, trained
        else:
            start = _start(request.messages) if request.start is None else request.start
            found.append(Chain(whole, {place: trained}, start))
    return found


def _same(ours: list[Message], theirs: list[Message]) -> bool:
    # Not every endpoint is sent the reasoning text back.
    return len(ours) == len(theirs) and all(
        (a["role"], a["content"]) == (b["role"], b["content"]) for a, b in zip(ours, theirs, strict=True)
    )


def marked(chain: Chain) -> list[Message]:
    """The messages of ``chain``, each of the assistant's with its ``weight``, 0 or 1."""
    return [
        {**message, "weight": int(chain.replies.get(place, False))} if message["role"] == "assistant" else dict(message)
        for place, message in enumerate(chain.messages)
    ]


def formed(row: dict[str, Any], form: Form = "weight", *, bare: bool = False) -> list[dict[str, Any]]:
    """A row with marked messages in the form that a trainer reads.

    Args:
        row: With ``messages`` as `marked` gives them, and the ``start`` of the chain; what else it has stays.
        form: See above.
        bare: Leave out all but what the trainer reads.

    Returns:
        One row. In the form ``"completion"`` one for each stretch of replies that are trained on, of which a later one
        has the earlier in its prompt; in ``"turns"`` one for each reply. None in the form ``"roles"`` where a reply in
        the middle is not to be trained on.

    Raises:
        ConfigurationError: There is no such form.
    """
    messages: list[Message] = row["messages"]
    about = {} if bare else {name: value for name, value in row.items() if name != "messages"}
    match form:
        case "weight":
            return [{"messages": messages, **about}]
        case "train":
            trained = [{**_plain(message), "train": message.get("weight") == 1} for message in messages]
            return [{"messages": trained, **about}]
        case "completion":
            return [{"prompt": before, "completion": after, **about} for before, after in _stretches(messages)]
        case "turns":
            plain = [_plain(message) for message in messages]
            learned = [place for place, message in enumerate(messages) if message.get("weight") == 1]
            return [{"prompt": plain[:place], "completion": plain[place : place + 1], **about} for place in learned]
        case "roles":
            plain = without_demonstrations(messages, row.get("start"))
            if any(message.get("weight") == 0 for message in plain):
                return []
            return [{"messages": [_plain(message) for message in plain], **about}]
    raise ConfigurationError(f"no form of rows {form!r}; there are: {', '.join(FORMS)}")


def without_demonstrations(messages: list[Message], start: int | None = None) -> list[Message]:
    """Marked messages as they would be without demonstrations, which are left out.

    The first message behind them says then no more that it begins anew.

    Args:
        messages: As `marked` gives them.
        start: Place of what is asked, behind demonstrations; None to find out, as for `Request`.
    """
    place = _start(messages) if start is None else start
    head = [message for message in messages[:place] if message["role"] == "system"]
    rest = [dict(message) for message in messages[place:]]
    if rest:
        rest[0]["content"] = str(rest[0]["content"]).removeprefix(FRESH)
    return head + rest


def _plain(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "weight"}


def _stretches(messages: list[Message]) -> list[tuple[list[Message], list[Message]]]:
    found: list[tuple[list[Message], list[Message]]] = []
    start: int | None = None
    end = 0
    for place, message in enumerate([*messages, {"role": "assistant", "weight": 0}]):
        if message["role"] != "assistant":
            continue
        if message.get("weight") == 1:
            start, end = place if start is None else start, place + 1
        elif start is not None:
            plain = [_plain(some) for some in messages[:end]]
            found.append((plain[:start], plain[start:]))
            start = None
    return found
