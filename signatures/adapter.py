"""Two adapters on DSPy's public adapter surface (``dspy.Adapter``: ``format`` and ``parse``).

`ConversationAdapter` serves the root: ``act`` and ``extract`` are one growing conversation. It takes the run's contract
and its raw turns from the current `rlm_dspy.signatures.conversation.Conversation`, not from the predictor's inputs, so
that what DSPy traces and saves stays small and free of both. `PlainTextAdapter` serves signatures that are one text
in, one text out (``llm_query``): the prompt is the message and the reply is the value, with no markers in between.

Both wrap the adapter the user configured: its callbacks are fired, and ``extract`` is formatted and parsed by it.
"""

from __future__ import annotations

import re
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from rlm_dspy.signatures import answered
from rlm_dspy.signatures.answers import salvage
from rlm_dspy.signatures.conversation import Conversation, Message, assistant, current, user
from rlm_dspy.signatures.demonstration import reply
from rlm_dspy.signatures.dialect import DIALECT, MARKED_DIALECT, find_code, labelled_code
from rlm_dspy.signatures.guidance import Guidance

Signature = type[dspy.Signature]

_PLAIN: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    list[str]: "a JSON list of texts",
    list[int]: "a JSON list of whole numbers",
}
"""Outputs of which one alone is asked for in plain words, without field markers."""


class ConversationAdapter(dspy.Adapter):
    """Render and parse the root's conversation.

    Args:
        inner: The user's adapter, for the typed fields of ``extract``; DSPy's ``ChatAdapter`` if None.
    """

    def __init__(self, inner: dspy.Adapter | None = None) -> None:
        super().__init__(callbacks=list(getattr(inner, "callbacks", None) or []))
        # Adapters that make LM calls of their own cannot be asked to only format and parse.
        known = isinstance(inner, (dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter))
        self.inner: dspy.Adapter = inner if known else dspy.ChatAdapter()

    def format(self, signature: Signature, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> list[Message]:
        """The messages of one request: for ``act`` all turns so far, for ``extract`` those and one last question."""
        conversation = current()
        if _acts(signature, conversation):
            guidance = conversation.guidance if conversation else Guidance()
            told = answered.shown(demos, conversation.answers) if conversation else ""
            messages = [_system(signature, guidance, told)]
            messages += _demos(demos, guidance) or (conversation.demonstration if conversation else [])
            if conversation is None:
                return messages + _from_inputs(inputs)
            conversation.opening = len(messages)
            messages += conversation.messages()
            conversation.sent = messages
            return messages
        if conversation is None:
            return self.inner.format(signature, demos, inputs)
        # The root's own last request is the prefix; what came after it is the last turn.
        messages = [*conversation.sent[: conversation.opening], *conversation.messages()]
        question = self._question(signature, demos, conversation.guidance.short_contract)
        if messages and messages[-1]["role"] == "user":
            messages[-1] = user(f"{messages[-1]['content']}\n\n{question}")
        else:
            messages.append(user(question))
        return messages

    def parse(self, signature: Signature, completion: str) -> dict[str, Any]:
        """Reasoning and code of a reply, or the typed outputs of ``extract``.

        Raises:
            AdapterParseError: Nothing usable is in the reply; the run makes an error turn of it.
        """
        conversation = current()
        if conversation is not None:
            conversation.reply = completion
        if _acts(signature, conversation):
            strict = conversation is not None and not conversation.guidance.salvage
            found = labelled_code(completion) if strict else find_code(completion)
            if not found.code:
                raise AdapterParseError(
                    adapter_name=type(self).__name__,
                    signature=signature,
                    lm_response=completion,
                    message="The reply has no Python code in it.",
                )
            return {"reasoning": found.reasoning, "code": found.code}
        return self._parse_answer(signature, completion)

    def _question(self, signature: Signature, demos: list[dict[str, Any]], short: bool) -> str:
        outputs = _outputs_only(signature)
        parts = [signature.instructions.strip()]
        for given in demos:
            demo = answered.last_words(given, outputs.output_fields) or given
            if all(demo.get(name) is not None for name in outputs.output_fields) and answered.small(dict(demo)):
                answer = self.inner.format_assistant_message_content(outputs, demo)
                parts.append(f"For example, for the task\n{demo.get('task', '')}\nthe answer was:\n{answer}")
        names = list(outputs.output_fields)
        annotation = outputs.output_fields[names[0]].annotation
        if short and len(names) == 1 and annotation in _PLAIN:
            kind = _PLAIN[annotation]
            parts.append(f"Reply with the value of `{names[0]}` ({kind}) and with nothing else: no code, no words.")
        else:
            parts.append(re.sub(r"\n{3,}", "\n\n", self.inner.format_field_structure(outputs)))
        return "\n\n".join(part for part in parts if part.strip())

    def _parse_answer(self, signature: Signature, completion: str) -> dict[str, Any]:
        outputs = _outputs_only(signature)
        try:
            return self.inner.parse(outputs, completion)
        except AdapterParseError:
            pass
        # The same reply, read in another way; nothing is asked again.
        try:
            return dspy.JSONAdapter().parse(outputs, completion)
        except AdapterParseError:
            pass
        found = salvage(completion, {name: field.annotation for name, field in outputs.output_fields.items()})
        if found is None:
            raise AdapterParseError(
                adapter_name=type(self).__name__,
                signature=outputs,
                lm_response=completion,
                message=f"The reply does not give {', '.join(outputs.output_fields)}.",
            )
        return found


class PlainTextAdapter(dspy.Adapter):
    """One text in, one text out: the input is the user message, the reply is the output, the instructions are the
    system message."""

    def __init__(self, inner: dspy.Adapter | None = None) -> None:
        super().__init__(callbacks=list(getattr(inner, "callbacks", None) or []))

    @staticmethod
    def fits(signature: Signature) -> bool:
        """True if ``signature`` is one ``str`` to one ``str``."""
        fields = (*signature.input_fields.values(), *signature.output_fields.values())
        return (
            len(signature.input_fields) == 1
            and len(signature.output_fields) == 1
            and all(field.annotation is str for field in fields)
        )

    def format(self, signature: Signature, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> list[Message]:
        """System message, one exchange a demonstration, the text."""
        (given,), (wanted,) = signature.input_fields, signature.output_fields
        messages: list[Message] = []
        if signature.instructions.strip():
            messages.append({"role": "system", "content": signature.instructions.strip()})
        for demo in demos:
            if demo.get(given) and demo.get(wanted) and answered.small(dict(demo)):
                messages += [user(str(demo[given])), assistant(str(demo[wanted]))]
        messages.append(user(str(inputs.get(given, ""))))
        return messages

    def parse(self, signature: Signature, completion: str) -> dict[str, Any]:
        """The reply as the one output."""
        (wanted,) = signature.output_fields
        return {wanted: completion}


def _acts(signature: Signature, conversation: Conversation | None) -> bool:
    """True if the request is the root's for its next action. An output of the task's own may be called ``code`` too."""
    return "code" in signature.output_fields and not (conversation is not None and conversation.extracting)


def _system(signature: Signature, guidance: Guidance, told: str) -> Message:
    dialect = DIALECT if guidance.plain_dialect else MARKED_DIALECT
    parts = (dialect, signature.instructions.strip(), told)
    return {"role": "system", "content": "\n\n".join(part for part in parts if part)}


def _demos(demos: list[dict[str, Any]], guidance: Guidance) -> list[Message]:
    """Each demonstration as a short conversation of real turns; what is not one of ``act``'s is passed over."""
    messages: list[Message] = []
    for demo in demos:
        if not demo.get("code"):
            continue
        messages += _from_inputs(demo, prefix="# Example task\n")
        reasoning = str(demo.get("reasoning") or "").strip()
        messages.append(assistant(reply(reasoning, str(demo["code"]).strip(), guidance)))
    return messages


def _from_inputs(inputs: dict[str, Any], prefix: str = "# Task\n") -> list[Message]:
    """The conversation as far as a predictor's traced inputs hold it."""
    messages = [user(f"{prefix}{inputs.get('task') or ''}")]
    turns = inputs.get("turns")
    for turn in turns if isinstance(turns, list) else []:
        if isinstance(turn, dict):
            if turn.get("reply"):
                messages.append(assistant(str(turn["reply"])))
            messages.append(user(str(turn.get("output") or "")))
    return messages


def _outputs_only(signature: Signature) -> Signature:
    for name in list(signature.input_fields):
        signature = signature.delete(name)
    return signature
