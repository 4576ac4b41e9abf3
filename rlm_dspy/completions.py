"""`completion`: one call for what is otherwise a program, in the place of an LM's ``completion(prompt)``.

The name is that of the paper's own library (``rlms``), where ``RLM(...).completion(prompt)`` stands in for
``llm.completion(prompt)``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
from dspy.lm15 import Message, Request, Response

from rlm_dspy import _compat, chat, inputs, reply_forms, router
from rlm_dspy.as_lm import RecursiveLM
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.rlm import RLM

_ROLES = ("system", "developer", "user", "assistant")
_ABOUT = "Answer the query from the context."
_ALONE = "The context says what is wanted, or holds it. Look at it, and give what it asks for."


def completion(
    prompt: Any,
    query: str | None = None,
    *,
    lm: dspy.BaseLM | None = None,
    sub_lm: dspy.BaseLM | None = None,
    **options: Any,
) -> dspy.Prediction:
    """Answer ``prompt``, however long it is.

    Args:
        prompt: What an LM would be sent: a text, or chat messages (dicts of ``role`` and ``content``). Or what the
            query is about: any value that an RLM takes as an input, such as a dict, a list, or a ``pathlib.Path`` of a
            file or folder.
        query: The question about ``prompt``, which then is data and nothing else. Without it ``prompt`` says itself
            what is wanted; of a long text the root sees the beginning and the end.
        lm: The LM of the root; ``dspy.settings.lm`` if None.
        sub_lm: The LM of sub-calls; ``lm`` if None.
        **options: Keywords of `rlm_dspy.RLM` but ``signature``: ``max_cost=``, ``interpreter=``, ``direct_below=``, …

    Returns:
        ``response``, a text, with ``outcome``, ``usage`` and ``trajectory`` as every RLM gives them.

    Raises:
        ConfigurationError: There is nothing to answer, or an option is wrong.

    Example:
        >>> rlm_dspy.completion(Path("logs"), "Which host failed first?").response  # doctest: +SKIP
    """
    program, values = _prepared(prompt, query, sub_lm, options)
    with _under(lm):
        return program(**values)


async def acompletion(
    prompt: Any,
    query: str | None = None,
    *,
    lm: dspy.BaseLM | None = None,
    sub_lm: dspy.BaseLM | None = None,
    **options: Any,
) -> dspy.Prediction:
    """`completion`, without blocking the event loop."""
    program, values = _prepared(prompt, query, sub_lm, options)
    with _under(lm):
        return await program.acall(**values)


def _prepared(
    prompt: Any, query: str | None, sub_lm: dspy.BaseLM | None, options: Mapping[str, Any]
) -> tuple[RLM, dict[str, Any]]:
    """The program to call, and its inputs."""
    if "signature" in options:
        raise ConfigurationError("completion has the signature 'context, query -> response': for others use RLM(...)")
    if query is not None and not isinstance(query, str):
        raise TypeError(f"query must be a text, not {type(query).__name__}")
    if query is not None and not query.strip():
        raise ConfigurationError("the query is empty: leave it out, or say what is asked")
    fields: dict[str, Any] = {"context": (Any, dspy.InputField())}
    if query is not None:
        fields["query"] = (str, dspy.InputField())
    fields["response"] = (str, dspy.OutputField())
    rlm = RLM(dspy.Signature(fields, _ALONE if query is None else _ABOUT), sub_lm=sub_lm, **options)
    if query is not None:
        return rlm, {"context": prompt, "query": query}
    if isinstance(prompt, Path):
        prompt = inputs.bind(rlm.signature, {"context": prompt})["context"]
    messages = _messages(prompt)
    if messages is None:
        return rlm, {"context": prompt}
    if not any(message.text.strip() for message in messages):
        raise ConfigurationError("the prompt is empty: there is nothing to answer")
    told = chat.brief(messages, rlm.tools, reply_forms.TEXT)
    program = told.program(rlm)
    if rlm.direct_below is not None and sum(router.tokens(message.text) for message in messages) < rlm.direct_below:
        # Counted here, where all messages are: of earlier ones only the long parts are inputs.
        program.direct_below = sys.maxsize
        program.direct = _AsItIs(messages)
    return program, told.variables


class _AsItIs(dspy.Module):
    """The direct call of the router for a conversation: the messages themselves, in one request."""

    def __init__(self, messages: list[chat.Message]) -> None:
        super().__init__()
        self.messages = messages

    def _request(self) -> Request:
        lm = dspy.settings.lm
        system = "\n\n".join(message.text for message in self.messages if message.role in chat.SYSTEM) or None
        rest = [message for message in self.messages if message.role not in chat.SYSTEM]
        said = [getattr(Message, message.role)(message.text) for message in rest]
        return Request(model=lm.model, messages=said, system=system, config=_compat.generation_config(lm))

    def forward(self, **inputs: Any) -> dspy.Prediction:
        return _reply(dspy.settings.lm(self._request()))

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        return _reply(await dspy.settings.lm.acall(self._request()))


def _reply(response: Response) -> dspy.Prediction:
    text = response.message.text
    if not text or not text.strip():
        raise ValueError("the reply is empty")
    return dspy.Prediction(**{reply_forms.REPLY: text})


def _messages(prompt: Any) -> list[chat.Message] | None:
    """The messages of a text or of a list of chat messages; None for any other value."""
    if isinstance(prompt, str):
        return [chat.Message("user", prompt)]
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return None
    messages = []
    for item in prompt:
        if not isinstance(item, Mapping) or item.get("role") not in _ROLES or not isinstance(item.get("content"), str):
            return None
        messages.append(chat.Message(item["role"], item["content"]))
    return messages


def _under(lm: dspy.BaseLM | None) -> Any:
    """The settings to run under: ``lm`` if it is given; and no RLM as the LM of an RLM that nobody asked for."""
    if lm is not None and not isinstance(lm, dspy.BaseLM):
        raise TypeError(f"lm must be an LM such as dspy.LM('openai/NAME'), not {lm!r}")
    chosen = lm or dspy.settings.lm
    while lm is None and isinstance(chosen, RecursiveLM):
        chosen = chosen.backend.lm
    return dspy.context(lm=chosen) if chosen is not dspy.settings.lm else contextlib.nullcontext()
