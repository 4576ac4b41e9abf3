"""The shipped configurations: valid to verifiers always, and to prime-rl where its schema is installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import training

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")
pytestmark = pytest.mark.heavy

CONFIGS = sorted(Path(training.__file__).with_name("configs").glob("*.toml"))
SCHEMAS = {"rl": "RLConfig", "sft": "SFTConfig", "evals": "EvalsConfig", "inference": "InferenceConfig"}
OF_PRIME_RL = [path for path in CONFIGS if path.stem.split("_")[0] in SCHEMAS]


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def environments(data: Any) -> Iterator[dict[str, Any]]:
    """Every ``env`` table, wherever it stands."""
    if isinstance(data, dict):
        if "env" in data:
            yield data["env"]
        for value in data.values():
            yield from environments(value)
    elif isinstance(data, list):
        for value in data:
            yield from environments(value)


def test_there_are_those_that_the_readme_names() -> None:
    told = Path(training.__file__).with_name("README.md").read_text()
    assert len(CONFIGS) == 6
    assert all(path.name in told for path in CONFIGS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_environment_is_valid_to_verifiers(path: Path) -> None:
    import verifiers.v1 as vf

    found = list(environments(read(path)))
    assert found or path.stem.startswith(("sft", "inference"))
    for data in found:
        env = vf.load_environment(vf.resolve_env_config(data))
        assert next(iter(env.taskset)).data.case().inputs["context"]
        data["agnet"] = {}
        with pytest.raises(ValueError, match="agnet"):
            vf.resolve_env_config(data)


def test_the_one_of_vf_eval_is_valid_as_a_whole() -> None:
    from verifiers.v1.configs.cli.eval import EvalConfig

    (path,) = (path for path in CONFIGS if path.stem == "vf_eval")
    assert EvalConfig.model_validate(read(path)).env.taskset.id == "rlm-dspy-needles"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_sample_holds_the_longest_conversation(path: Path) -> None:
    data = read(path)
    for source in data.get("orchestrator", {}).get("train", {}).get("source", []):
        options = source["env"]["agent"]["harness"]["options"]
        reply = data["orchestrator"]["train"]["sampling"]["max_completion_tokens"]
        turn = reply + options["max_output_chars"] / 4 + 100
        assert 2_000 + options["max_iters"] * turn <= data["seq_len"]


@pytest.mark.parametrize("path", OF_PRIME_RL, ids=lambda path: path.stem)
def test_it_is_valid_to_prime_rl(path: Path) -> None:
    reason = "needs prime-rl's packages/prime-rl-configs, which is on no index; see training/README.md"
    kind = path.stem.split("_")[0]
    schema = getattr(pytest.importorskip(f"prime_rl.configs.{kind}", reason=reason), SCHEMAS[kind])
    schema.model_validate(read(path))
    for table in ({"max_stepz": 1}, {"model": {"nmae": "x"}}):
        with pytest.raises(ValueError, match=next(iter(table))):
            schema.model_validate({**read(path), **table})
