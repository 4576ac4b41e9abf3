"""What works on this machine, what does not, and how to mend it.

    from rlm_dspy import doctor

    for finding in doctor.examine():
        print(finding.status, finding.name, finding.found, *finding.fixes)

On the command line: ``rlm-dspy doctor``. Each check is a small function, and none can take the others with it: whatever
one raises becomes its finding, and one that hangs is given up. So nothing that a broken machine may lack, DSPy
included, is imported before the check that looks at it.

    finding.py    what a check finds
    checks.py     all checks at the same time, each by itself
    software.py   Python, the installed versions, DSPy's import, extras
    sandbox.py    the default environment, really started; causes.py: what stands in its way
    machine.py    temporary folder, memory, disk, open files, processes, cache, terminal
    model.py      the language model, asked one short question; the embedded model
    text.py       errors, sizes and commands as text
    report.py     the findings for people, at any width
"""

from __future__ import annotations

from rlm_dspy.doctor.checks import examine
from rlm_dspy.doctor.finding import Finding, Status

__all__ = ["Finding", "Status", "examine"]
