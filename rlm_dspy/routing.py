"""Which LM answers: named models, and the root's and sub-LM's of each depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import dspy

from rlm_dspy.errors import ConfigurationError

Seat = Literal["root", "sub"]
SEATS: tuple[Seat, ...] = ("root", "sub")


class Routes:
    """The LMs that a program names.

    Args:
        models: Name to LM, for ``model=`` in the REPL.
        by_depth: Depth to ``{"root": ..., "sub": ...}``, each an LM or a name in ``models``: who plays the root of the
            children at that depth, and who answers their sub-calls. It holds for deeper ones too, up to the next entry.

    Raises:
        ConfigurationError, TypeError: Something in them is no LM, no depth, or no known name.
    """

    def __init__(
        self,
        models: Mapping[str, dspy.BaseLM] | None = None,
        by_depth: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        if not isinstance(models or {}, Mapping):
            raise TypeError(f"models must map names to LMs, as in models={{'fast': dspy.LM(...)}}, not {models!r}")
        for name, lm in (models or {}).items():
            if not isinstance(name, str) or not name.strip():
                raise ConfigurationError(f"the names in models must be texts, not {name!r}")
            _check_lm(lm, f"models[{name!r}]")
        self.models: dict[str, dspy.BaseLM] = dict(models or {})
        self._given = dict(by_depth or {}) if isinstance(by_depth or {}, Mapping) else {}
        self._by_depth: dict[int, dict[str, Any]] = {}
        if not isinstance(by_depth or {}, Mapping):
            raise TypeError(f"models_by_depth must be as {{1: {{'root': lm, 'sub': lm}}}}, not {by_depth!r}")
        for depth, seats in sorted((by_depth or {}).items()):
            if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
                raise ConfigurationError(f"a depth in models_by_depth must be a whole number from 0, not {depth!r}")
            if not isinstance(seats, Mapping) or not seats or seats.keys() - set(SEATS):
                form = "{'root': lm, 'sub': lm}"
                raise ConfigurationError(f"models_by_depth[{depth}] must be as {form}, not {seats!r}")
            self._by_depth[depth] = {
                seat: self._of_depth(lm, f"models_by_depth[{depth}][{seat!r}]") for seat, lm in seats.items()
            }

    def _of_depth(self, lm: Any, where: str) -> dspy.BaseLM:
        if not isinstance(lm, str):
            return _check_lm(lm, where)
        if lm not in self.models:
            known = f"there are {', '.join(map(repr, self.models))}" if self.models else "no models are named"
            raise ConfigurationError(
                f"no model named {lm!r}, which {where} is; {known}. Add it: models={{{lm!r}: dspy.LM(...)}}"
            )
        return self.models[lm]

    def named(self, name: Any) -> dspy.BaseLM:
        """The LM called ``name``.

        Raises:
            ConfigurationError: There is none; the message lists those there are.
        """
        if isinstance(name, str) and name in self.models:
            return self.models[name]
        if not self.models:
            raise ConfigurationError(f"no model named {name!r}: there is one sub-LM, call the function without model=")
        raise ConfigurationError(f"no model named {name!r}; the models are {', '.join(map(repr, self.models))}")

    def at(self, depth: int, seat: Seat) -> dspy.BaseLM | None:
        """The LM of ``seat`` at ``depth`` as `by_depth` has it, or None."""
        found = None
        for start, seats in self._by_depth.items():
            if start <= depth and seat in seats:
                found = seats[seat]
        return found

    def changed(self, **changes: Any) -> Routes:
        """These with other ``models`` or ``models_by_depth``."""
        return Routes(changes.get("models", self.models), changes.get("models_by_depth", self._given))

    def lms(self) -> list[dspy.BaseLM]:
        """All LMs that are named here."""
        return [*self.models.values(), *(lm for seats in self._by_depth.values() for lm in seats.values())]

    def __deepcopy__(self, memo: dict[int, Any]) -> Routes:
        """Itself: LMs are shared, as DSPy shares those of predictors, and nothing else is in it."""
        return self


def _check_lm(lm: Any, where: str) -> dspy.BaseLM:
    if not isinstance(lm, dspy.BaseLM):
        raise TypeError(f"{where} must be an LM such as dspy.LM('openai/NAME'), not {lm!r}")
    return lm
