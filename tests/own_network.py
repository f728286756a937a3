"""Run a command in a network namespace of its own that has nothing but loopback, where the system permits it.

`python tests/own_network.py COMMAND …`. Ray then can reach no other Ray of this machine, and nobody can reach it.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def leave_network() -> bool:
    """Move this process into a network of its own with loopback up; False where that is not permitted."""
    if not sys.platform.startswith("linux"):
        return False
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(CLONE_NEWNET) and unshare(CLONE_NEWUSER | CLONE_NEWNET):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        fcntl.ioctl(line, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    return True


if __name__ == "__main__":
    where = "in a network of its own" if leave_network() else "on this machine's loopback"
    sys.stderr.write(f"{where}: {' '.join(sys.argv[1:])}\n")
    os.execvp(sys.argv[1], sys.argv[1:])
