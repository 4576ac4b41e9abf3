"""What is learned, as tokens: sequences of token ids, and which of them the model itself has to say.

Rows to fine-tune on (`rlm_dspy.rows`, `rlm_dspy.training.samples`) become sequences by the model's own chat template,
and of each reply exactly the tokens are learned that the model samples when it is asked: from behind the template's
head of an assistant's turn to the token that ends it. Replies of one conversation are one sequence as long as the
template renders the earlier ones as they were said; where it does not (it drops their reasoning, say), the next reply
begins a sequence of its own, as its request would.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from rlm_dspy.errors import ConfigurationError

__all__ = ["Sequence", "learned_messages", "of_trace", "read_rows", "sequences"]

Message = dict[str, Any]


@dataclass
class Sequence:
    """One conversation, or a part of it, as tokens.

    Attributes:
        ids: Token ids.
        mask: For each, whether it is learned.
        logprobs: Natural logarithm of the probability with which each was sampled; 0.0 for what was not. Empty for
            sequences of rows.
        advantage: Of all its learned tokens; 1.0 for sequences of rows.
        seat: Whose, such as ``"agent"``.
        temperature: At which it was sampled.
    """

    ids: list[int]
    mask: list[bool]
    logprobs: list[float] = field(default_factory=list)
    advantage: float = 1.0
    seat: str = ""
    temperature: float = 1.0

    @property
    def learned(self) -> int:
        """How many tokens are learned."""
        return sum(self.mask)

    def shown(self, tokenizer: Any, *, around: tuple[str, str] = ("«", "»")) -> str:
        """The text, with what is learned put between two marks: to see what a row teaches.

        Args:
            tokenizer: Of the model.
            around: The marks.
        """
        stretches = itertools.groupby(zip(self.ids, self.mask, strict=True), key=lambda pair: pair[1])
        texts = ((learned, tokenizer.decode([one for one, _ in pairs])) for learned, pairs in stretches)
        return "".join(f"{around[0]}{text}{around[1]}" if learned else text for learned, text in texts)

    def add(self, ids: Iterable[int], learned: bool) -> None:
        """Go on with these tokens."""
        more = list(ids)
        self.ids += more
        self.mask += [learned] * len(more)


def read_rows(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, or of all such files of a folder.

    Raises:
        ConfigurationError: There is no such file, or a line is no JSON object; the message says which.
    """
    place = Path(path)
    files = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    if not files or not all(file.is_file() for file in files):
        raise ConfigurationError(f"no rows: {place} is neither a file of JSON lines nor a folder with *.jsonl in it")
    rows: list[dict[str, Any]] = []
    for file in files:
        # Not by ``splitlines``: a text may hold other ends of lines, such as U+2028, as they are.
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigurationError(f"{file}:{number} is no JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigurationError(f"{file}:{number} is no JSON object")
            rows.append(row)
    return rows


def learned_messages(row: Mapping[str, Any]) -> list[tuple[Message, bool]]:
    """The messages of a row of any of the forms of `rlm_dspy.rows`, and which of them are learned.

    In ``messages`` an assistant's message is learned unless its ``weight`` is 0 or its ``train`` is false; of
    ``prompt`` and ``completion`` those of the completion are.

    Raises:
        ConfigurationError: The row has neither, or a message has no role or no text.
    """
    for message in itertools.chain.from_iterable(
        row[name] for name in ("messages", "prompt", "completion") if isinstance(row.get(name), list)
    ):
        if not isinstance(message, Mapping):
            raise ConfigurationError(f"a message is an object with a 'role' and a 'content', not {message!r:.200}")
    if isinstance(row.get("messages"), list):
        found = [(message, message.get("weight", 1) != 0 and message.get("train", True)) for message in row["messages"]]
    elif isinstance(row.get("prompt"), list) and isinstance(row.get("completion"), list):
        found = [(message, False) for message in row["prompt"]] + [(message, True) for message in row["completion"]]
    else:
        raise ConfigurationError(
            "a row has 'messages', or 'prompt' and 'completion', each a list of messages; this one has: "
            + (", ".join(map(repr, row)) or "nothing")
        )
    for message, _ in found:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise ConfigurationError(f"a message has a 'role' and a 'content', both text, unlike {str(message)[:200]}")
    return [(_plain(message), bool(learned) and message["role"] == "assistant") for message, learned in found]


def _plain(message: Message) -> Message:
    return {name: value for name, value in message.items() if name not in ("weight", "train")}


def sequences(row: Mapping[str, Any], tokenizer: Any, template: Mapping[str, Any] | None = None) -> Iterator[Sequence]:
    """A row as tokens.

    Args:
        row: See `learned_messages`.
        tokenizer: Of transformers, with a chat template.
        template: Arguments of the chat template, such as ``{"enable_thinking": False}``: those that the model is
            asked with later.

    Raises:
        ConfigurationError: The row is none, or the tokenizer has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigurationError("the tokenizer of this model has no chat template: take the chat model of the family")
    pairs = learned_messages(row)
    messages = [message for message, _ in pairs]
    current: Sequence | None = None
    said = ""
    for place, (message, learned) in enumerate(pairs):
        if not learned:
            continue
        asked = _rendered(tokenizer, messages[:place], template, reply=True)
        if current is None or not asked.startswith(said):
            if current is not None:
                yield current
            current, said = Sequence([], []), ""
        current.add(_ids(tokenizer, asked[len(said) :]), False)
        whole = _rendered(tokenizer, messages[: place + 1], template, reply=False)
        reply = _ids(tokenizer, whole[len(asked) :] if whole.startswith(asked) else message["content"])
        end = _ends(tokenizer)
        last = next((number for number, one in enumerate(reply) if one in end), None)
        if last is None:
            # A template that renders replies in another way, or ends them with nothing.
            reply, last = [*reply, tokenizer.eos_token_id], len(reply)
        current.add(reply[: last + 1], True)
        current.add(reply[last + 1 :], False)
        said = whole if whole.startswith(asked) else "\0"
    if current is not None:
        yield current


def _rendered(tokenizer: Any, messages: list[Message], template: Mapping[str, Any] | None, *, reply: bool) -> str:
    return str(
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=reply, **dict(template or {}))
    )


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _ends(tokenizer: Any) -> set[int]:
    return {tokenizer.eos_token_id}


def of_trace(trace: Any, advantage: float, seat: str) -> Iterator[Sequence]:
    """What a seat said in a rollout, as verifiers has it of its training client: one sequence a branch.

    A reply that several branches begin with is learned once, in the first.

    Args:
        trace: Of verifiers, of one seat.
        advantage: Of the rollout.
        seat: Its name.
    """
    temperatures = [getattr(call.sampling, "temperature", None) for call in trace.calls]
    temperature = next((float(one) for one in temperatures if one is not None), 1.0)
    seen: set[int] = set()
    for branch in trace.branches:
        mask: list[bool] = []
        for node in branch.nodes:
            again = node.sampled and id(node) in seen
            mask += [False] * len(node.mask) if again else [bool(one) for one in node.mask]
            if node.sampled:
                seen.add(id(node))
        if any(mask):
            yield Sequence(list(branch.token_ids), mask, list(branch.logprobs), advantage, seat, temperature)
