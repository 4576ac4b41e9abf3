"""Presets: strategies that were compiled for a model, with how they were made and what they are worth.

    rlm = RLM.from_preset("NAME", "context, query -> answer")     # one that comes with rlm-dspy
    rlm = RLM.from_preset("strategy.json", MySignature)           # one of your own

A preset is a program's saved state (``program.save("x.json")``), so that ``rlm.load`` reads it too, with one more
entry, ``"preset"``: the model it was made for, the recipe (optimizer, data, seeds, command), the scores before and
after with their intervals, the date. ``rlm-dspy compile`` writes such files, `write` does so in a program. Strategy and
demonstrations name no input of the task, so they serve programs of other signatures; what belongs to the outputs of the
task it was made on (``extract``, typed sub-calls) is taken only where the program has the same.

    files.py    reading and writing them
    use.py      a program of one
"""

from __future__ import annotations

from rlm_dspy.presets.files import Preset, Score, names, read, write
from rlm_dspy.presets.use import apply, from_preset

__all__ = ["Preset", "Score", "apply", "from_preset", "names", "read", "write"]
