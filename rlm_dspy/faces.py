"""What else an `RLM` can be: a language model, a tool, a stream of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import dspy

if TYPE_CHECKING:
    from rlm_dspy.as_lm import RecursiveLM
    from rlm_dspy.as_tool import RLMTool
    from rlm_dspy.rlm import RLM
    from rlm_dspy.stream import RunStream

__all__ = ["Faces"]


class Faces:
    """The methods of `RLM` that give it another form; each imports what it needs when it is called."""

    def as_lm(
        self,
        lm: dspy.BaseLM | None = None,
        sub_lm: dspy.BaseLM | None = None,
        *,
        direct_below: int | Literal["program"] | None = "program",
        **options: Any,
    ) -> RecursiveLM:
        """A ``dspy.LM`` whose replies to long requests this RLM writes; see `rlm_dspy.as_lm.as_lm`.

        Args:
            lm: The LM behind it, which plays the root and answers short requests. None for that of ``act``, else
                ``dspy.settings.lm`` as it is now.
            sub_lm: The LM of sub-calls; None for the program's own, else ``lm``.
            direct_below: Tokens; shorter requests go to ``lm`` as they are. ``"program"`` for what the program says,
                else a default that fits the window of ``lm``; None for none.
            **options: As for `with_options`, such as ``max_cost``.

        Example:
            >>> dspy.configure(lm=rlm.as_lm(lm=dspy.LM("openai/gpt-5.4-mini")))  # doctest: +SKIP
            >>> dspy.ChainOfThought("book, question -> answer")(book=ten_megabytes, question="…")  # doctest: +SKIP
        """
        from rlm_dspy.as_lm import as_lm

        return as_lm(cast("RLM", self), lm, sub_lm, direct_below=direct_below, **options)

    def as_tool(
        self, *, inputs: Mapping[str, Any] | None = None, name: str | None = None, desc: str | None = None
    ) -> RLMTool:
        """A tool for `dspy.ReAct`, another RLM or any agent: its arguments are the inputs, its result the answer.

        Args:
            inputs: Inputs given beforehand, such as the large ones; the agent is not asked for them.
            name: What the agent calls; by default made from the class of the signature, else ``"ask"``.
            desc: What it is for; by default the instructions of the signature.

        Raises:
            ConfigurationError: ``inputs`` names what the signature does not have, or ``name`` is no identifier.

        Example:
            >>> ask = rlm.as_tool(inputs={"log": log}, name="ask_the_log", desc="...")  # doctest: +SKIP
            >>> dspy.ReAct("question -> ship", tools=[ask])(question="Which ship was late?")  # doctest: +SKIP
        """
        from rlm_dspy.as_tool import as_tool

        return as_tool(cast("RLM", self), inputs=inputs, name=name, desc=desc)

    def stream(self, *args: Any, **inputs: Any) -> RunStream:
        """A call whose events come as they happen, the prediction last: see `rlm_dspy.stream.RunStream`."""
        from rlm_dspy.stream import RunStream

        rlm = cast("RLM", self)
        rlm._refuse_positional(args)
        return RunStream(rlm, inputs)
