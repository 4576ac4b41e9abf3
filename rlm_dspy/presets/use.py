"""A program of a preset."""

from __future__ import annotations

import logging
from os import PathLike
from typing import TYPE_CHECKING, Any

from rlm_dspy.presets.files import Preset, read, without_lms

if TYPE_CHECKING:
    import dspy

    from rlm_dspy.rlm import RLM

logger = logging.getLogger(__name__)


def from_preset(
    cls: type[RLM], name: str | PathLike[str], signature: str | type[dspy.Signature], **options: Any
) -> RLM:
    """An RLM that begins with what a preset has learned: strategy, demonstrations, the options that go with them.

    Args:
        name: Of a preset that comes with rlm-dspy (`rlm_dspy.presets.names`), or the path of one or of a saved state.
        signature: Of the program; need not be that of the preset.
        **options: As for the constructor; they come before those of the preset.

    Raises:
        ConfigurationError: There is no such preset.

    Example:
        >>> rlm = RLM.from_preset("strategy.json", "context, query -> answer: int")  # doctest: +SKIP
    """
    preset = read(name)
    rlm = cls(signature, **{**preset.options, **options})
    apply(preset, rlm)
    return rlm


def apply(preset: Preset, rlm: RLM) -> list[str]:
    """Give the predictors of ``rlm`` what those of the same name and fields have learned in ``preset``.

    Their LMs stay. Predictors with other fields, such as ``extract`` of a task with other outputs, stay as they are.

    Returns:
        The names of those that were given something.
    """
    taken = []
    for name, predictor in rlm.named_predictors():
        entry = preset.state.get(name)
        if not isinstance(entry, dict) or _fields(entry) != _fields(predictor.dump_state()):
            continue
        lm = predictor.lm
        predictor.load_state(without_lms({name: entry})[name])
        predictor.lm = lm
        taken.append(name)
    if "act" not in taken:
        logger.warning("the preset %s has nothing for a root: it was made of another kind of program", preset.name)
    return taken


def _fields(entry: Any) -> list[str]:
    # Saved signatures have no names; a field's prefix is made of its name.
    return [str(field["prefix"]) for field in (entry.get("signature") or {}).get("fields", [])]
