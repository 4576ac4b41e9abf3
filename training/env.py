"""The environment of verifiers: an episode is one call of the program; root, sub-calls and children have seats."""

from __future__ import annotations

from typing import Any, Literal

import httpx
import verifiers.v1 as vf
from pydantic import Field, model_validator

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.training.collecting import Seldom
from rlm_dspy.training.harness import RLMHarnessConfig
from rlm_dspy.training.hiding import sources
from rlm_dspy.training.programs import Programs
from rlm_dspy.training.seats import Desk, Turnstile, current_desk

__all__ = ["RLMEnv", "RLMEnvConfig"]

Children = Literal["agent", "sub", "child"]


def _seat() -> vf.AgentConfig:
    """A seat; the program runs in this process, so the runtime of verifiers is a folder and nothing more."""
    return vf.AgentConfig(runtime=vf.SubprocessConfig(), harness=RLMHarnessConfig())


class RLMEnvConfig(vf.EnvConfig):
    """The seats, and what is trained.

    Attributes:
        agent: Plays the root; its ``harness`` names the program. ``model``, ``client``, ``sampling``, ``max_turns``,
            ``max_total_tokens`` and ``timeout`` are the seat's own, here as on the others.
        sub: Answers sub-calls, at every depth.
        child: Plays the roots of children, where `children` says so.
        children: The seat that plays the roots of children.
        train_agent, train_sub, train_child: Whether what the seat says is trained.
        sub_reward, child_reward: What of the root's reward these seats get.
        seldom_collect: Full garbage collections of the process are rare while this environment serves, and leave out
            what was there before, because the event loop of all rollouts stands still in them.
    """

    agent: vf.AgentConfig = _seat()
    sub: vf.AgentConfig = _seat()
    child: vf.AgentConfig = _seat()
    children: Children = "agent"
    train_agent: bool = True
    # There are ten to a hundred sub-calls to a root, all with the same advantage.
    train_sub: bool = False
    train_child: bool = True
    sub_reward: float = Field(1.0, allow_inf_nan=False)
    child_reward: float = Field(1.0, allow_inf_nan=False)
    max_concurrent_agents: int | None = None
    seldom_collect: bool = True

    @model_validator(mode="after")
    def _seats_play_together(self) -> RLMEnvConfig:
        if self.max_concurrent_agents is not None and self.max_concurrent_agents < 3:
            raise ConfigurationError(
                "the seats of an RLM play at the same time: leave max_concurrent_agents out, or set it to 3 or more"
            )
        return self


class RLMEnv(vf.Env[RLMEnvConfig]):
    """Play a task with the program of the root's seat."""

    def __init__(self, config: RLMEnvConfig) -> None:
        super().__init__(config)
        self._turnstile = Turnstile()
        self._programs = Programs()
        self._seldom = Seldom()

    async def start(self) -> None:
        """What takes long at the first rollout, before it. Called by verifiers."""
        # Imports the rest of httpx, which makes the clients of verifiers.
        await httpx.AsyncClient().aclose()
        if self.config.seldom_collect:
            self._seldom.begin()

    async def stop(self) -> None:
        """The process is as it was before `start`."""
        self._seldom.end()

    async def setup(self, agents: Any) -> None:
        """Say what is trained."""
        agents.agent.trainable = self.config.train_agent
        agents.sub.trainable = self.config.train_sub
        agents.child.trainable = self.config.train_child

    async def run(self, task: vf.Task, agents: Any) -> None:
        """One call of the program; other seats join when they are first asked."""
        runs = {"sub": agents.sub.run, "child": agents.child.run}
        desk = Desk(runs, self.config.children, self._turnstile, self._programs, sources(task))
        token = current_desk.set(desk)
        ended = False
        try:
            await self._turnstile.passing()
            await agents.agent.run(task)
            ended = True
        finally:
            current_desk.reset(token)
            await desk.close(cancel=not ended)

    async def finalize(self, task: vf.Task, episode: Any) -> None:
        """Give the other seats their part of the root's reward."""
        roots = episode.by_agent.get("agent", [])
        if not roots:
            return
        if roots[-1].ok:
            # What other seats said to an attempt of the root that was void, before this one.
            episode.traces[:] = [trace for trace in episode.traces if trace.ok or trace.agent.name == "agent"]
        seats = episode.by_agent
        for name, weight in (("sub", self.config.sub_reward), ("child", self.config.child_reward)):
            for trace in seats.get(name, []):
                trace.record_reward("root", roots[-1].reward, weight)
