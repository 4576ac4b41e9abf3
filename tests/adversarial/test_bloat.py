"""A few bytes from a sandbox that would become gigabytes, hours or a crash in the host."""

from __future__ import annotations

import decimal
import json
import subprocess
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment, Submission
from rlm_dspy.environments.codec import Decoder, Encoder
from rlm_dspy.environments.scalars import MAX_EXPONENT, MAX_RANGE
from rlm_dspy.environments.wire import ProtocolError, Reader, cost_limit, json_cost
from rlm_dspy.submit import MAX_JSON, Refused, validate
from rlm_dspy.testing import ScriptedLM, code

CAP = 1 << 20


def leave(value: Any) -> Any:
    """``value`` as it leaves a sandbox and reaches the host."""
    encoder = Encoder(CAP)
    tree = encoder.dump(value)
    return Decoder(encoder.blobs, False, cost_limit(CAP)).load(tree)


def arrive(tree: Any) -> Any:
    """What a host makes of a tree that no honest encoder made."""
    return Decoder([], False, cost_limit(CAP)).load(json.loads(json.dumps(tree)))


def test_ranges_cross_up_to_a_number_in_all() -> None:
    assert leave([range(MAX_RANGE), range(0)]) == [range(MAX_RANGE), range(0)]
    with pytest.raises(ValueError, match="ranges of more than"):
        Encoder(CAP).dump([range(MAX_RANGE)] * 2)
    assert Encoder().dump([range(MAX_RANGE)] * 2)
    node = {"$": "range", "v": [0, MAX_RANGE, 1]}
    assert arrive([node]) == [range(MAX_RANGE)]
    with pytest.raises(ProtocolError, match="ranges too long"):
        arrive([node, node])


def test_an_index_is_as_long_as_its_table_at_most() -> None:
    pandas = pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")
    rows = MAX_RANGE + 1_000_000
    table = pandas.DataFrame({"a": numpy.zeros(rows, dtype="i8")})
    encoder = Encoder(256 << 20)
    tree = encoder.dump(table)
    assert len(Decoder(encoder.blobs, False, cost_limit(256 << 20)).load(tree)) == rows
    with pytest.raises(ValueError, match="ranges of more than"):
        Encoder(256 << 20).dump(pandas.RangeIndex(rows))
    with pytest.raises(ProtocolError):
        arrive({"$": "pd.range", "n": None, "v": [0, rows, 1]})


def test_a_structured_array_is_as_long_as_its_columns() -> None:
    numpy = pytest.importorskip("numpy")
    value = numpy.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")])
    assert (leave(value) == value).all()
    column = Encoder().dump(numpy.zeros(1))
    with pytest.raises(ProtocolError, match="structured array"):
        arrive({"$": "np.fields", "s": [50_000_000_000], "v": [["a", column]]})
    with pytest.raises(ProtocolError):
        arrive({"$": "np.fields", "s": [3, 50_000_000], "v": [["a", Encoder().dump(numpy.zeros((3, 1)))]]})


def test_a_decimal_leaves_the_sandbox_if_an_int_of_it_can_be_made() -> None:
    for text in ("1E+999", "-1E-999999", "NaN", "-Infinity", "0.10"):
        assert str(leave(decimal.Decimal(text))) == text
    far = decimal.Decimal(f"1E+{MAX_EXPONENT + 1}")
    with pytest.raises(ValueError, match="cannot leave the sandbox"):
        Encoder(CAP).dump(far)
    with pytest.raises(ProtocolError):
        arrive({"$": "decimal", "v": "1E+300000000"})
    # The host's own inputs are its own affair.
    assert Decoder([], True).load(Encoder().dump(far)) == far


def test_text_is_read_as_json_up_to_a_size() -> None:
    signature = dspy.Signature("q -> answer: list[list[int]]")
    assert validate(Submission(("[[1], []]",)), signature) == {"answer": [[1], []]}
    text = f"[{'[],' * (MAX_JSON // 128)}[]]"
    assert json_cost(text) > MAX_JSON
    with pytest.raises(Refused, match="submit the value itself"):
        validate(Submission((text,)), signature)


def test_the_memory_of_a_line_counts_not_its_length() -> None:
    line = b'{"op":"call","body":[%s]}\n' % (b"[]," * 100_000 + b"[]")
    stream = [line, b""]
    reader = Reader(lambda _: stream.pop(0), max_blobs=CAP)
    assert reader.frame()[0]["op"] == "call"
    assert reader.cost > 10 * len(line)


def test_a_large_answer_is_not_written_out_in_the_trajectory(sandbox: Environment) -> None:
    rlm = RLM("q -> answer: list[str]", interpreter=sandbox, max_output_chars=1_000)
    with dspy.context(lm=ScriptedLM([code("SUBMIT(['x' * 3_000_000, 'y'])")])):
        prediction = rlm(q="x")
    assert [len(part) for part in prediction.answer] == [3_000_000, 1]
    assert len(repr(prediction.trajectory)) + sum(len(repr(event)) for event in prediction.trajectory.events) < 50_000


def test_arguments_of_a_tool_are_shown_in_short_whatever_they_hold(sandbox: Environment) -> None:
    def digits(value: Any) -> str:
        """How long it is."""
        return str(value[0][0].bit_length())

    rlm = RLM("q -> answer: str", tools=[digits], interpreter=sandbox)
    with dspy.context(lm=ScriptedLM([code("SUBMIT(digits([[10**5000, 'x' * 2_000_000]]))")])):
        prediction = rlm(q="x")
    assert prediction.answer == str((10**5000).bit_length())
    assert max(len(event.preview) for event in prediction.trajectory.events if hasattr(event, "preview")) < 200


DEEP = """
import sys, dspy
from rlm_dspy import RLM, environments
from rlm_dspy.testing import ScriptedLM, code
sys.setrecursionlimit(10**6)
forged = '''
import gc, os, time
worker = next(o for o in gc.get_objects() if type(o).__name__ == "Worker" and hasattr(o, "_sink"))
data = b'{"op":"submit","id":1,"body":' + b'[' * 1_000_000 + b']' * 1_000_000 + b'}\\\\n'
while data:
    data = data[os.write(worker._sink, data):]
time.sleep(60)
'''
honest = "SUBMIT('[' * 1_000_000 + ']' * 1_000_000)"
rlm = RLM("q -> answer: list[int]", interpreter=environments.local(site_packages=False, timeout=20))
with dspy.context(lm=ScriptedLM([code(forged), code(honest), code("SUBMIT([7])")])):
    prediction = rlm(q="x")
print(prediction.outcome, prediction.answer)
"""


def test_deep_json_does_not_crash_a_host_that_has_raised_the_recursion_limit(
    in_python: Callable[..., subprocess.Popen[str]],
) -> None:
    process = in_python(DEEP)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "submitted [7]\n"), err
