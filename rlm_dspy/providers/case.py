"""One failure of one LM, with all that a sentence about it may mention."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from rlm_dspy.providers import facts
from rlm_dspy.providers.failures import Failure
from rlm_dspy.providers.listing import models_at


class Case:
    """A failure with what its sentence is made of.

    Args:
        failure: Its kind.
        model: As ``dspy.LM`` was given it; empty where that is not known.
        lm: The ``dspy.LM``, or None.
    """

    def __init__(self, failure: Failure, model: str, lm: Any) -> None:
        self.failure = failure
        self.lm = lm
        self.full = model
        self.prefix = facts.prefix_of(model)
        self.provider = facts.provider_of(model)
        self.name = model.partition("/")[2] or model  # as the server has it
        self.keys = facts.key_variables(model) or failure.variables
        address = facts.address_of(model, lm)
        self.address = facts.shown_url(address) if address else None
        self.raw_address = address
        self.local = bool(address) and facts.is_loopback(str(address))
        self.port = _port(address)
        self.http = f" (HTTP {failure.status})" if failure.status else ""

    @property
    def who(self) -> str:
        """The provider, or where the server is."""
        return f"the server at {self.address}" if self.address and self.prefix != "azure" else self.provider.name

    @property
    def whose(self) -> str:
        """`who` as an owner, of keys and models."""
        return "that server's" if self.prefix == "openai" and self.address else f"{self.provider.name}'s"

    @property
    def like(self) -> str:
        """The beginning of the names of other models of the same provider."""
        return self.full.removesuffix(self.name)

    @property
    def Who(self) -> str:  # noqa: N802
        """`who` at the beginning of a sentence."""
        return self.who[:1].upper() + self.who[1:]

    @property
    def is_ollama(self) -> bool:
        """Whether the server is Ollama, by the model's prefix or the usual port."""
        return self.prefix in ("ollama", "ollama_chat") or self.port == 11434

    @property
    def call(self) -> str:
        return f'dspy.LM("{self.full}")' if self.full else "dspy.LM(...)"

    def option(self, text: str) -> str:
        """How the LM is made with one more option."""
        return f'dspy.LM("{self.full}", {text})' if self.full else f"dspy.LM(..., {text})"

    def offered(self) -> list[str]:
        """The models that the server lists, if it is on this machine; no other one is asked."""
        if not self.local or not self.raw_address:
            return []
        return models_at(self.raw_address, facts.settings_of(self.lm).get("api_key"))


def _port(address: str | None) -> int | None:
    try:
        return urlsplit(address or "").port
    except ValueError:
        return None
