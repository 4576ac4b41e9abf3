"""The quickstart's model when there is none: a root and a reader that were written beforehand.

Their replies are fixed, all else is real: the code below runs in the sandbox, the sub-calls travel through the engine,
the answer is checked against the signature. A file with ``root(call)`` and, where sub-calls are made, ``sub(call)`` is
what ``rlm-dspy ask --model scripted:PATH`` takes; ``call`` is a `rlm_dspy.testing.Call`.
"""

from __future__ import annotations

from rlm_dspy.quickstart.journal import MONEY
from rlm_dspy.testing import Call, Reply, code

_LOOK = """\
lines = context.splitlines()
print(f"{len(context):,} characters in {len(lines):,} lines")
print("\\n".join(lines[:4]))
notes = [line for line in lines if line[20:].startswith(" NOTE ")]
print(f"{len(notes)} notes; the first:\\n{notes[0]}")"""

_PARSE = """\
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

@dataclass
class Note:
    at: datetime
    service: str
    text: str
    person: str

SHAPE = re.compile(r"(\\S+) NOTE (\\S+) \\| (.*) \\(signed (\\w+)\\)$")
parsed = []
for line in notes:
    at, service, text, person = SHAPE.match(line).groups()
    parsed.append(Note(datetime.fromisoformat(at), service, text, person))
fields = [line.split(maxsplit=3) for line in lines]
failed = [(datetime.fromisoformat(at), service) for at, level, service, _ in fields if level == "ERROR"]
len(parsed), len(failed)"""

_READ = """\
prompts = [
    f"Was this change made in order to spend less money? Answer yes or no.\\n\\n{note.text}" for note in parsed
]
replies = llm_query_batched(prompts)
saving = [note for note, reply in zip(parsed, replies) if reply.strip().lower().startswith("yes")]
for note in saving:
    print(note.at.time(), note.service, note.person, "-", note.text[:70])"""

_COUNT = """\
def errors_after(note):
    until = note.at + timedelta(minutes=60)
    return sum(1 for at, service in failed if service == note.service and note.at <= at < until)

counts = sorted(((errors_after(note), note) for note in saving), key=lambda pair: -pair[0])
for errors, note in counts:
    print(errors, note.service, note.person)"""

_SUBMIT = """\
errors, note = counts[0]
SUBMIT(service=note.service, person=note.person, errors=errors)"""

_TURNS = (
    ("I look at the size and the shape of the journal first.", _LOOK),
    ("Notes of changes stand among the log lines. I take both apart with code.", _PARSE),
    ("Why a change was made has to be read, so I ask the sub-LM about every note at once.", _READ),
    ("Now I count the failures after each of these.", _COUNT),
    ("The first one stands out.", _SUBMIT),
)


def root(call: Call) -> str:
    """The root's next turn."""
    plan, source = _TURNS[min(call.turn, len(_TURNS) - 1)]
    return code(source, plan)


def sub(call: Call) -> Reply:
    """The reader's answer on one note: it knows which texts are about money, as a model would by reading them."""
    about_money = any(all(part in call.prompt for part in text.split("{service}")) for text in MONEY)
    return Reply("yes" if about_money else "no", delay=0.05)
