"""Turns into another program that dies with its owner: `python -I -S tether.py OWNER_PID PROGRAM ARGS...`.

Run as a script, before anything else exists in the new process: `preexec_fn` would do the same between fork and exec,
where a process with threads may do next to nothing. The process id stays the same through the exec.
Linux only; elsewhere the program runs untethered, and only an orderly stop ends it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(owner: int, argv: list[str]) -> None:
    """Bind this process to its parent, then become `argv`. SIGKILL, because a stopped process ignores gentler ones."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != owner:  # it died before the line above, which then waits for somebody else's death
            sys.exit(1)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
