"""Programs measured: right and wrong answers, failures of their own and of what they run on, money, and going on."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.lm15 import AuthError, RateLimitError, ServerError

from rlm_dspy import RLM, evaluation, tasks
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError, RecordingError, SandboxUnavailableError
from rlm_dspy.evaluation import Program, Stop, evaluate
from rlm_dspy.testing import Call, Reply, ScriptedLM, code, outputs

COUNT = "context, query -> answer: int"
PRICES = {"scripted/lm": (1_000.0, 1_000.0)}


def examples(n: int = 4, lines: int = 400) -> list[dspy.Example]:
    """How many apples are there: known by construction, spread over the whole text."""
    made = []
    for number in range(n):
        every = 7 + number
        text = "".join(f"line {line}: {'apple' if line % every == 0 else 'pear'}\n" for line in range(lines))
        made.append(
            dspy.Example(
                context=text, query="How many apples?", answer=-(-lines // every), signature=COUNT, kind="count"
            ).with_inputs("context", "query")
        )
    return made


def counts(call: Call) -> str:
    """An LM that does what it is asked to, and sees only what is in the prompt."""
    text = "\n".join(message["content"] for message in call.messages)
    if "# Task" in text:
        return code("SUBMIT(answer=context.count('apple'))")
    if "findings" in call.system:
        return outputs(findings=f"{call.prompt.count(': apple')} found")
    if "`code`" in text or "## code ##" in text:
        return outputs(reasoning="count", code="SUBMIT(answer=context.count('apple'))")
    found = [int(number) for number in re.findall(r"(\d+) found", call.prompt)]
    return outputs(answer=sum(found) if found else call.prompt.count(": apple"))


def right(example: dspy.Example, prediction: Any) -> bool:
    return bool(prediction.answer == example.answer)


def rlm(sandbox: Environment, **options: Any) -> Program:
    return evaluation.get("rlm", interpreter=sandbox, guidance=False, **options)


def test_programs_side_by_side(sandbox: Environment, tmp_path: Path) -> None:
    batch = examples(3, lines=3_000)
    programs = [rlm(sandbox), *(evaluation.get(name, window=6_000) for name in ("direct", "truncate", "chunks"))]
    programs.append(evaluation.get("dspy.RLM", max_iters=3))
    seen: list[dict[str, Any]] = []
    with dspy.context(lm=ScriptedLM(counts)):
        report = evaluate(programs, batch, right, out=tmp_path, threads=3, prices=PRICES, seen=seen.append)
    assert report.complete and len(report.rows) == 15 and report.stopped is None
    by_program = {one["program"]: one for one in report.to_dict()["programs"]}
    assert {name: one["score"] for name, one in by_program.items()} == {
        **{"rlm": 1.0, "direct": 0.0, "truncate": 0.0, "chunks": 1.0, "dspy.RLM": 1.0}
    }
    assert by_program["direct"]["outcomes"] == {"overflow": 3} and by_program["direct"]["lm_calls"] == 0
    assert by_program["truncate"]["outcomes"] == {"answered": 3} and by_program["truncate"]["lm_calls"] == 3
    assert by_program["rlm"]["outcomes"] == by_program["dspy.RLM"]["outcomes"] == {"submitted": 3}
    assert by_program["chunks"]["lm_calls"] == 3 * (4 + 1)
    assert by_program["truncate"]["won"] == 0 and by_program["truncate"]["lost"] == 3
    assert all(one["cost"] > 0 for name, one in by_program.items() if name != "direct")
    assert report.spent == pytest.approx(sum(one["cost"] for one in by_program.values()))
    assert [row["program"] for row in report.rows[:5]] == [one.name for one in programs]
    assert {row["key"] for row in seen} == {"count/0", "count/1", "count/2"}
    kept = dspy.Example(rows=[json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()])
    assert sum(row.get("record") == "result" for row in kept.rows) == 15
    from rlm_dspy import Trajectory

    trajectory = Trajectory.from_jsonl(tmp_path / "trajectories" / "rlm-count-0.jsonl")
    assert len(trajectory) == 1 and "SUBMIT" in trajectory[0]["code"]


def test_what_is_done_is_not_done_again(sandbox: Environment, tmp_path: Path) -> None:
    lm = ScriptedLM(counts)
    with dspy.context(lm=lm):
        first = evaluate(rlm(sandbox), examples(2), right, out=tmp_path)
        again: list[Any] = []
        second = evaluate(rlm(sandbox), iter(examples(4)), right, out=tmp_path, seen=again.append)
    assert len(lm.calls) == 4 and len(first.rows) == 2 and len(second.rows) == 4
    assert second.rows[:2] == first.rows and [row.get("again") for row in again] == [True, True, None, None]


def test_other_settings_and_other_examples_are_refused(sandbox: Environment, tmp_path: Path) -> None:
    with dspy.context(lm=ScriptedLM(counts)):
        evaluate(rlm(sandbox, max_iters=5), examples(1), right, out=tmp_path)
        with pytest.raises(ConfigurationError, match=r"max_iters was 5 and is 6.*another folder \(--out\)"):
            evaluate(rlm(sandbox, max_iters=6), examples(1), right, out=tmp_path)
        with pytest.raises(ConfigurationError, match=r"count/0, but of another example"):
            evaluate(rlm(sandbox, max_iters=5), examples(1, lines=401), right, out=tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results.jsonl").write_text('{"mine": 1}\n')
    with pytest.raises(ConfigurationError, match="is none of `rlm-dspy eval`"):
        evaluate(rlm(sandbox), examples(1), right, out=tmp_path / "other")
    assert (tmp_path / "other" / "results.jsonl").read_text() == '{"mine": 1}\n'
    with pytest.raises(ConfigurationError, match="is a file"):
        evaluate(rlm(sandbox), examples(1), right, out=tmp_path / "results.jsonl")


@pytest.mark.parametrize("error", [RateLimitError("slow down"), AuthError("bad key"), ServerError("oops")])
def test_a_provider_that_fails_is_no_wrong_answer(error: Exception, sandbox: Environment, tmp_path: Path) -> None:
    """Told apart for every sort of program, and made again."""
    programs = [evaluation.get("direct"), evaluation.get("dspy.RLM", max_iters=2)]
    if isinstance(error, AuthError):
        # The others are tried again for half a minute.
        programs.append(rlm(sandbox))
    with dspy.context(lm=ScriptedLM(lambda call: Reply(error=error))):
        report = evaluate(programs, examples(1), right, out=tmp_path)
    assert [(row["status"], row["score"]) for row in report.rows] == [("error", None)] * len(programs)
    assert report.score is None and not report.complete
    assert all(type(error).__name__.removesuffix("Error") in row["error"] for row in report.rows), report.rows
    with dspy.context(lm=ScriptedLM(counts)):
        assert evaluate(programs, examples(1), right, out=tmp_path).score == 1.0


def test_a_provider_that_fails_in_the_middle_of_a_run(sandbox: Environment) -> None:
    """The answer that could still be extracted says nothing of the program."""

    def policy(call: Call) -> str | Reply:
        if any("No more code can run" in message["content"] for message in call.messages):
            return outputs(answer=1)
        return code("print(1)") if call.observations == 0 else Reply(error=AuthError("gone"))

    with dspy.context(lm=ScriptedLM(policy)):
        (row,) = evaluate(rlm(sandbox), examples(1), right).rows
    assert (row["status"], row["outcome"], row["score"]) == ("error", "error", None)
    assert "gone" in row["error"] and row["lm_errors"] == 1 and row["turns"] >= 1


def test_a_sandbox_that_does_not_start_is_no_wrong_answer() -> None:
    def broken() -> Any:
        raise SandboxUnavailableError("no namespaces here")

    program = Program("broken", lambda signature: RLM(signature, interpreter_factory=broken))
    with dspy.context(lm=ScriptedLM(counts)):
        (row,) = evaluate(program, examples(1), right).rows
    assert (row["status"], row["score"]) == ("error", None) and "no namespaces" in row["error"]


def test_what_a_program_does_wrong_is_worth_nothing(sandbox: Environment) -> None:
    def raises(**inputs: Any) -> Any:
        raise KeyError("my own bug")

    def leaves(**inputs: Any) -> Any:
        raise SystemExit(3)

    programs = [
        Program("raises", lambda signature: raises),
        Program("leaves", lambda signature: leaves),
        rlm(sandbox, max_iters=1),
        Program("strict", lambda signature: RLM(signature, interpreter=sandbox, max_iters=1, on_limit="raise")),
        evaluation.get("direct"),
    ]
    with dspy.context(lm=ScriptedLM(lambda call: code("print(1)") if "# Task" in str(call.messages) else "gibberish")):
        report = evaluate(programs, examples(1), right)
    assert [(row["status"], row["score"]) for row in report.rows] == [("failed", 0.0)] * 5, report.rows
    assert "my own bug" in report.rows[0]["error"] and report.rows[3]["limit"] == "max_iters"


def test_a_context_that_the_provider_refuses_is_an_overflow() -> None:
    from dspy.lm15 import ContextLengthError

    with dspy.context(lm=ScriptedLM(lambda call: Reply(error=ContextLengthError("too many tokens")))):
        (row,) = evaluate(evaluation.get("direct"), examples(1), right).rows
    assert (row["outcome"], row["score"]) == ("overflow", 0.0)


def test_a_metric_that_fails_is_told_apart(sandbox: Environment) -> None:
    for metric, said in ((lambda e, p: 1 / 0, "ZeroDivision"), (lambda e, p: 7, "gave 7.0"), (lambda e, p: "x", "x")):
        with dspy.context(lm=ScriptedLM(counts)):
            (row,) = evaluate(evaluation.get("direct"), examples(1), metric).rows
        assert row["score"] is None and "the metric" in row["error"] and said in row["error"]


def test_many_failures_in_a_row_end_it() -> None:
    lm = ScriptedLM(lambda call: Reply(error=AuthError("bad key")))
    with dspy.context(lm=lm):
        report = evaluate(evaluation.get("direct"), examples(30), right, max_errors=3)
    assert len(report.rows) == 3 and "3 calls in a row failed" in str(report.stopped)


def test_money_ends_it_and_what_was_spent_is_remembered(sandbox: Environment, tmp_path: Path) -> None:
    lm = ScriptedLM(counts)
    program = evaluation.get("direct")
    with dspy.context(lm=lm):
        one = evaluate(program, examples(1), right, prices=PRICES).spent
        limit = 2.5 * one
        report = evaluate(program, examples(8), right, out=tmp_path, max_cost=limit, prices=PRICES)
        assert len(report.rows) == 3 and str(report.stopped).startswith("max_cost=")
        made = len(lm.calls)
        again = evaluate(program, examples(8), right, out=tmp_path, max_cost=limit, prices=PRICES)
        assert len(lm.calls) == made and len(again.rows) == 3 and again.spent == pytest.approx(report.spent)
        assert evaluate(program, examples(8), right, out=tmp_path, max_cost=20 * one, prices=PRICES).complete


def test_money_stops_an_rlm_under_way_whose_result_does_not_count(sandbox: Environment, tmp_path: Path) -> None:
    def policy(call: Call) -> str:
        return outputs(answer=0) if "No more code" in str(call.messages) else code(f"print({call.number})")

    with dspy.context(lm=ScriptedLM(policy)):
        report = evaluate(rlm(sandbox, max_iters=50), examples(1), right, out=tmp_path, max_cost=5.0, prices=PRICES)
    assert report.rows == [] and report.spent >= 5.0
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert lines[-1]["record"] == "unfinished" and lines[-1]["lm_calls"] < 50
    assert lines[-1]["cost"] == pytest.approx(report.spent)


def test_a_limit_on_money_wants_prices(sandbox: Environment) -> None:
    for program in (rlm(sandbox), evaluation.get("direct"), evaluation.get("dspy.RLM")):
        with dspy.context(lm=ScriptedLM(counts)), pytest.raises(ConfigurationError, match="price of scripted/lm"):
            evaluate(program, examples(1), right, max_cost=1.0)


def test_an_unknown_price_is_an_unknown_cost(sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM(counts)):
        (row,) = evaluate(rlm(sandbox), examples(1), right).rows
    assert row["cost"] is None and row["unpriced_calls"] == 1 and row["input_tokens"] > 0


def test_calls_of_children_and_tools_are_counted_once(sandbox: Environment) -> None:
    def tool(text: str) -> str:
        """Asks an LM by itself."""
        return str(dspy.Predict("text -> reply")(text=text).reply)

    def policy(call: Call) -> str:
        text = str(call.messages)
        if "# Task" not in text:
            return outputs(reply="yes") if "reply" in text else "yes"
        if "the result" in call.own[0]["content"]:
            return code("SUBMIT('5')")
        return code("tool('x'); llm_query('y'); rlm_query('child task'); SUBMIT(answer=1)")

    program = RLM(COUNT, interpreter=sandbox, guidance=False, tools=[tool], max_depth=2)
    lm = ScriptedLM(policy)
    with dspy.context(lm=lm):
        (row,) = evaluate(program, examples(1), right, prices=PRICES).rows
    assert row["lm_calls"] == len(lm.calls) == 4, row
    assert row["input_tokens"] == sum(sum(len(m["content"]) for m in one.messages) // 4 for one in lm.calls)


def test_giving_up_cancels_and_keeps_what_is_done(sandbox: Environment, tmp_path: Path) -> None:
    stop, begun, over = Stop(), threading.Event(), threading.Event()

    def policy(call: Call) -> str | Reply:
        if call.number >= 2:
            begun.set()
            over.wait(60)
        return counts(call)

    threading.Thread(target=lambda: begun.wait(60) and stop.give_up("interrupted"), daemon=True).start()
    with dspy.context(lm=ScriptedLM(policy)):
        report = evaluate(rlm(sandbox), examples(5), right, out=tmp_path, stop=stop)
    assert not over.is_set()
    over.set()
    assert len(report.rows) == 2 and report.stopped == "interrupted"
    with dspy.context(lm=ScriptedLM(counts)):
        assert len(evaluate(rlm(sandbox), examples(5), right, out=tmp_path).rows) == 5


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    program = evaluation.get("direct")
    with dspy.context(lm=ScriptedLM(counts)):
        evaluate(program, examples(2), right, out=tmp_path)
        path = tmp_path / "results.jsonl"
        path.write_text(path.read_text().replace('"record": "program"', '"record" "program"'))
        with pytest.raises(RecordingError, match=r"line 2 of .* is damaged"):
            evaluate(program, examples(2), right, out=tmp_path)


def test_a_module_as_it_is_and_a_task_of_ours(sandbox: Environment) -> None:
    """A module of DSPy's, an example without a signature, the metric of a task."""
    batch = tasks.generate(4, 1_000, seed=3, family="needles", kinds=["find"])
    with dspy.context(lm=ScriptedLM(lambda call: outputs(answer=batch[0].answer))):
        report = evaluate(dspy.Predict("context, query -> answer"), batch, tasks.score, threads=2)
    assert report.rows[0]["score"] == 1.0 and report.rows[0]["key"] == "needles/find/1000/3/0"
    assert report.rows[0]["gold"] == {"answer": batch[0].answer}
    assert report.rows[1]["answer"] == {"answer": batch[0].answer}


def test_unknown_programs_are_refused_with_the_fix() -> None:
    with pytest.raises(ConfigurationError, match=r"there are rlm, direct, truncate, chunks, dspy\.RLM, and found="):
        evaluation.get("rml")
    with pytest.raises(ConfigurationError, match="mine is a int: name a"):
        evaluation.get("mine", 3).of("a -> b")


def test_a_program_of_ones_own_is_built_for_each_signature(sandbox: Environment) -> None:
    built: list[Any] = []

    def build(signature: Any) -> dspy.Module:
        built.append(signature)
        return dspy.Predict(signature)

    batch = [*examples(2), examples(1)[0].copy(signature="context, query -> answer")]
    with dspy.context(lm=ScriptedLM(counts)):
        report = evaluate(evaluation.get("mine", build), [one.with_inputs("context", "query") for one in batch], right)
    assert [row["program"] for row in report.rows] == ["mine"] * 3 and built == [COUNT, "context, query -> answer"]


def test_other_wrong_arguments() -> None:
    one = evaluation.get("direct")
    with pytest.raises(ConfigurationError, match="two of the programs"):
        evaluate([one, one], examples(1), right)
    with pytest.raises(ConfigurationError, match="threads must be a whole number"):
        evaluate(one, examples(1), right, threads=0)
    with pytest.raises(ConfigurationError, match="max_cost must be a positive number"):
        evaluate(one, examples(1), right, max_cost=-1)
    with pytest.raises(ConfigurationError, match=r"a program is a dspy\.Module"):
        evaluate("rlm", examples(1), right)
    with dspy.context(lm=ScriptedLM(counts)):
        (row,) = evaluate(evaluation.get("truncate"), examples(1), right).rows
    assert "window of scripted/lm is unknown" in row["error"] and row["score"] is None


def test_files_by_name_are_text_for_whoever_has_no_variables(sandbox: Environment) -> None:
    (example,) = tasks.generate(1, 2_000, seed=3, family="repository", kinds=["find"])
    path, text = next(iter(example.context.items()))

    def policy(call: Call) -> str:
        if "# Task" in str(call.messages):
            return code("SUBMIT(answer=str(len(context)))")
        if "## code ##" in str(call.messages):
            return outputs(reasoning="count", code="SUBMIT(answer=str(len(context)))")
        return outputs(answer="seen" if f"===== {path} =====\n{text[:40]}" in call.prompt else "not seen")

    programs = [rlm(sandbox), *(evaluation.get(name, window=50_000) for name in ("direct", "truncate", "chunks"))]
    programs.append(evaluation.get("dspy.RLM", max_iters=2))
    with dspy.context(lm=ScriptedLM(policy)):
        report = evaluate(programs, [example], tasks.score)
    many = str(len(example.context))
    assert [row["answer"]["answer"] for row in report.rows] == [many, "seen", "seen", "seen", many], report.rows


@pytest.mark.heavy
def test_it_is_one_run_of_mlflow_where_runs_are_tracked(tmp_path: Path, in_python: Any) -> None:
    script = f"""
import dspy
from rlm_dspy import evaluation, tasks, tracking
from rlm_dspy.testing import ScriptedLM, code, outputs

tracking.enable("tasks", "sqlite:///{tmp_path}/mlflow.db")
lm = ScriptedLM(lambda call: code("SUBMIT(answer=3)") if "# Task" in str(call.messages) else outputs(answer=3))
programs = [evaluation.get("rlm", interpreter="subprocess", guidance=False), evaluation.get("direct")]
batch = tasks.generate(3, 1000, 1, family="needles", kinds=["count"])
with dspy.context(lm=lm):
    report = evaluation.evaluate(programs, batch, tasks.score, threads=2)
tracking.flush()
import mlflow

(run,) = mlflow.search_runs(experiment_names=["tasks"], output_format="list")
assert run.data.metrics["rlm.score"] == report.to_dict()["programs"][0]["score"], run.data.metrics
assert run.data.metrics["direct.n"] == 3 and run.data.metrics["rlm.errors"] == 0
assert run.data.params["threads"] == "2" and run.data.params["rlm.interpreter"] == "subprocess", run.data.params
traces = mlflow.search_traces(run_id=run.info.run_id, return_type="list")
assert len(traces) == 6, len(traces)
print("fine")
"""
    process = in_python(script)
    out, err = process.communicate(timeout=180)
    assert "fine" in out, err
