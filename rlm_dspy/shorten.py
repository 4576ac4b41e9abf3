"""Making a conversation shorter without a language model: the oldest outputs are left out first, whole turns next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlm_dspy.signatures.conversation import Branch, Conversation

CUTS = (4_000, 1_000, 200)
"""Characters that the output of the last turn is cut to, when everything before it is gone."""


def shorter(branch: Branch, turns: int) -> Iterator[Branch]:
    """``branch`` itself, then shorter and shorter ones, down to the first message alone.

    Args:
        branch: Of the conversation.
        turns: How many it has.
    """
    branch = replace(branch, until=turns)
    yield branch
    for short in range(max(branch.short, branch.since) + 1, turns):
        branch = replace(branch, short=short)
        yield branch
    for since in range(branch.since + 1, turns):
        branch = replace(branch, since=since)
        yield branch
    for most in CUTS:
        if branch.most is None or most < branch.most:
            branch = replace(branch, most=most)
            yield branch
    yield replace(branch, since=turns)
    yield Branch("", turns, turns, turns)


def fitting(conversation: Conversation, chars: int, branch: Branch | None = None) -> Branch:
    """The least shortened branch of which a request has at most ``chars`` characters; the shortest if none has.

    Args:
        conversation: Stays as it is.
        chars: Of the whole request.
        branch: To start from; that of the conversation if None.
    """
    start = conversation.branch if branch is None else branch
    found = start
    for found in shorter(start, len(conversation.exchanges)):
        if conversation.chars(found) <= chars:
            break
    return found


def halve(conversation: Conversation) -> bool:
    """Leave out about half of what can be left out; False if there is nothing left of it."""
    turns = len(conversation.exchanges)
    now, least = conversation.chars(), conversation.chars(Branch("", turns, turns, turns))
    branch = fitting(conversation, least + (now - least) // 2)
    if conversation.chars(branch) >= now:
        return False
    conversation.branch = branch
    return True
