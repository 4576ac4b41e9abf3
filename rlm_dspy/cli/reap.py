"""``rlm-dspy doctor --reap``."""

from __future__ import annotations

import argparse
import json
import sys

from rlm_dspy.cli import exits, output
from rlm_dspy.errors import MissingExtraError, SandboxUnavailableError


def run(options: argparse.Namespace) -> int:
    """Remove the containers that dead processes have left on the Docker engine, and say which; 0 if that worked."""
    from rlm_dspy.environments import docker_engine, docker_reaper

    try:
        engine = docker_engine.engine()
        with engine.explained("the containers of dead processes cannot be removed"):
            removed = docker_reaper.reap(engine.api)
            images = docker_reaper.images(engine.api)
    except (MissingExtraError, SandboxUnavailableError) as error:
        print(f"rlm-dspy doctor: {error}", file=sys.stderr)
        return exits.ERROR
    if options.json:
        found = {"removed": [{"id": orphan.id, "owner": orphan.owner} for orphan in removed], "images": images}
        output.answer(json.dumps(found, indent=2))
        return exits.SUBMITTED
    lines = [f"removed {orphan.id[:12]} of {orphan.owner}" for orphan in removed]
    lines.append(f"{len(removed)} {'container' if len(removed) == 1 else 'containers'} of dead processes removed")
    if images:
        lines.append(
            f"{len(images)} built {'image is' if len(images) == 1 else 'images are'} kept for the next time: "
            f"docker image prune --all --filter label={docker_reaper.MARK}=image"
        )
    output.answer("\n".join(lines))
    return exits.SUBMITTED
