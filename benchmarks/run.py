"""``make bench``: every engine does every work against one server, and a table says how they compare.

    python -m benchmarks.run [--only WORK,...] [--engines ENGINE,...] [--repeats N] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from benchmarks import machine, server, table
from benchmarks.engines import ENGINES
from benchmarks.work import WORKS, Work

ROOT = Path(__file__).resolve().parents[1]
RLMS = "rlms==0.1.3"
RLMS_PYTHON = ROOT / ".venv-bench" / "bin" / "python"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and with ``--write`` keep the table in RESULTS.md. 1 if something could not be measured."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    options = _options(arguments)
    works = [work for work in WORKS if not options.only or work.name in options.only]
    engines = [engine for engine in ENGINES if not options.engines or engine in options.engines]
    lines = [f"Machine: {machine.about()}"]
    before = machine.noise()
    print(lines[0], file=sys.stderr, flush=True)
    reasons: list[str] = []
    if "rlms" in engines and (reason := _install_rlms()):
        engines.remove("rlms")
        reasons.append(f"rlms: not measured, {reason}")
    results: dict[tuple[str, str], dict[str, Any]] = {}
    failed = False
    with server.running() as address:
        for work in works:
            for engine in engines:
                skip = dict(work.skip).get(engine)
                if skip or (engine == "bare" and work.record):
                    if skip:
                        reasons.append(f"{engine}, {work.title}: not measured, it {skip}")
                    continue
                result = _child(engine, work, address, options.repeats)
                if work.record:
                    result |= server.prefixes(address).get(work.root_model(engine), {})
                results[engine, work.name] = result
                if "reason" in result:
                    failed = True
                    reasons.append(f"{engine}, {work.title}: {result['reason']}")
                print(f"  {work.title}: {engine} {_short(result)}", file=sys.stderr, flush=True)
    facts = table.Machine(machine.bwrap_start(), machine.help_time())
    after = machine.noise()
    lines.append(
        f"Noise: a fixed loop took {before[0] * 1000:.0f} ms before and {after[0] * 1000:.0f} ms after; its median was "
        f"{max(before[1], after[1]):.0%} above its least time."
    )
    sandbox = "no bwrap" if facts.sandbox is None else f"bwrap python -I: {facts.sandbox * 1000:.0f} ms"
    lines.append(f"Starts: {sandbox}; python -I: {machine.python_start() * 1000:.0f} ms.")
    lines += ["", "Least (median) of the repeats, one process an engine:", ""]
    lines.append(table.markdown(table.rows(results, facts)))
    if reasons:
        lines += ["", *(f"- {reason}" for reason in reasons)]
    text = "\n".join(lines)
    print(text, flush=True)
    if options.write:
        (ROOT / "benchmarks" / "RESULTS.md").write_text(f"# Results\n\nMade by `make bench ARGS=--write`.\n\n{text}\n")
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name for name in text.split(",") if name]

    parser = argparse.ArgumentParser(prog="make bench", description="Measure RLMs beside each other.")
    parser.add_argument("--only", type=names, default=[], help=f"works: {', '.join(work.name for work in WORKS)}")
    parser.add_argument("--engines", type=names, default=[], help=f"engines: {', '.join(ENGINES)}")
    parser.add_argument("--repeats", type=int, default=0, help="how often to time each work; 0 for its own number")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/RESULTS.md")
    options = parser.parse_args(arguments)
    for given, known in ((options.only, [work.name for work in WORKS]), (options.engines, list(ENGINES))):
        unknown = sorted(set(given) - set(known))
        if unknown:
            parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return options


def _child(engine: str, work: Work, address: str, repeats: int) -> dict[str, Any]:
    python = str(RLMS_PYTHON) if engine == "rlms" else sys.executable
    done = subprocess.run(
        [python, "-m", "benchmarks.child", engine, work.name, address, str(repeats)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"reason": f"failed: {last[:300]}"}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _install_rlms() -> str | None:
    """Put the paper's package into an environment of its own; why not, if it cannot be had."""
    if RLMS_PYTHON.exists() and subprocess.run([RLMS_PYTHON, "-c", "import rlm"], capture_output=True).returncode == 0:
        return None
    print(f"installing {RLMS} into {RLMS_PYTHON.parents[1].name}", file=sys.stderr, flush=True)
    venv.create(RLMS_PYTHON.parents[1], with_pip=True)
    done = subprocess.run(
        [RLMS_PYTHON, "-m", "pip", "install", "--quiet", RLMS], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    return f"pip install {RLMS} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"


def _short(result: dict[str, Any]) -> str:
    if "reason" in result:
        return str(result["reason"])
    return " ".join(f"{seconds:.3f}" for seconds in result["seconds"]) + " s"


if __name__ == "__main__":
    sys.exit(main())
