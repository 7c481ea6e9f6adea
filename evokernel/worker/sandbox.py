"""Take from a candidate's process what no kernel needs: other processes, the network, privileges.

A second line behind the guard, on Linux. It needs no root: seccomp and Landlock work for any process that gives up
gaining privileges. A refused call fails with EPERM or EACCES, so it surfaces as the candidate's own error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522

ALLOW = 0x7FFF0000
KILL = 0x80000000
REFUSE = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF, 32-bit words
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in struct seccomp_data
CLONE_THREAD = 0x10000
PR_SET_PDEATHSIG = 1
FILE_LOCKS = (6, 7, 37, 38)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
X32_BIT = 0x40000000  # the same kernel's other numbering

# By architecture: its audit number, then the numbers of system calls.
CALLS: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            **{"clone": 56, "clone3": 435, "fork": 57, "vfork": 58, "execve": 59, "execveat": 322},
            **{"kill": 62, "tgkill": 234, "tkill": 200, "prlimit64": 302, "prctl": 157},
            **{"setpgid": 109, "setsid": 112, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311},
            **{"socket": 41, "connect": 42, "bind": 49, "listen": 50, "io_uring_setup": 425},
            **{"pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438, "rt_sigqueueinfo": 129},
            **{"rt_tgsigqueueinfo": 297, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323},
            **{"unshare": 272, "setns": 308, "mount": 165, "setpriority": 141, "sched_setscheduler": 144},
            **{"sched_setparam": 142, "sched_setattr": 314, "sched_setaffinity": 203},
            **{"fcntl": 72, "flock": 73, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240},
            **{"add_key": 248, "request_key": 249, "keyctl": 250},
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            **{"clone": 220, "clone3": 435, "execve": 221, "execveat": 281},
            **{"kill": 129, "tgkill": 131, "tkill": 130, "prlimit64": 261, "prctl": 167},
            **{"setpgid": 154, "setsid": 157, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271},
            **{"socket": 198, "connect": 203, "bind": 200, "listen": 201, "io_uring_setup": 425},
            **{"pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438, "rt_sigqueueinfo": 138},
            **{"rt_tgsigqueueinfo": 240, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282},
            **{"unshare": 97, "setns": 268, "mount": 40, "setpriority": 140, "sched_setscheduler": 119},
            **{"sched_setparam": 118, "sched_setattr": 274, "sched_setaffinity": 122},
            **{"fcntl": 25, "flock": 32, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180},
            **{"add_key": 217, "request_key": 218, "keyctl": 219},
        },
    ),
}

# Landlock: one numbering on every architecture; what each version of its interface added (linux/landlock.h).
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
FILE_WRITES = 1 << 1
FOLDER_WRITES = sum(1 << bit for bit in range(4, 13))  # make and remove what a folder may hold
FILE_WRITES_SINCE = {3: 1 << 14}  # truncate
FOLDER_WRITES_SINCE = {2: 1 << 13}  # move and link between folders
TCP_SINCE, TCP = 4, 0b11  # bind, connect
SCOPES_SINCE, SCOPES = 6, 0b11  # abstract sockets of others, signals to others

# What a process that may start programs keeps.
STARTING = frozenset({"clone", "clone3", "fork", "vfork", "execve", "execveat", "kill", "tgkill", "tkill"})
STARTING |= {"setpgid", "setsid", "prctl", "prlimit64"}

Step = tuple[int, int, int, int]  # code, skip when true, skip when false, operand


def hide_memory() -> None:
    """Close this process's memory, environment and descriptors (/proc/PID) to others of the same user."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def drop_privileges() -> None:
    """Give up root's capabilities, where there are any, and the way to gain more. Another's memory needs them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24))


def landlock_version() -> int:
    """Return the version of Landlock's interface here, 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def refuse_writes(except_in: Iterable[Path]) -> bool:
    """Let this thread, and what it starts, write files in some folders alone; False where this system cannot.

    Where Landlock is new enough, it also reaches no TCP port and signals nobody but what it started.
    """
    version = landlock_version()
    if version < 1:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    file = FILE_WRITES + sum(bit for since, bit in FILE_WRITES_SINCE.items() if version >= since)
    folder = file + FOLDER_WRITES + sum(bit for since, bit in FOLDER_WRITES_SINCE.items() if version >= since)
    handled = [folder, TCP if version >= TCP_SINCE else 0, SCOPES if version >= SCOPES_SINCE else 0]
    words = 1 + (version >= TCP_SINCE) + (version >= SCOPES_SINCE)
    rules = libc.syscall(CREATE_RULESET, struct.pack(f"={words}Q", *handled[:words]), ctypes.c_size_t(8 * words), 0)
    if rules < 0:
        return False
    for path in (*except_in, Path(os.devnull)):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        access = folder if path.is_dir() else file
        libc.syscall(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", access, place), 0)
        os.close(place)
    done = libc.syscall(RESTRICT_SELF, rules, 0)
    os.close(rules)
    return bool(done == 0)


def filters_system_calls() -> bool:
    """Say whether the filter is known for this system."""
    return sys.platform == "linux" and platform.machine() in CALLS and sys.maxsize > 1 << 32


def refuse_system_calls(programs: bool = False) -> bool:
    """Install the filter for good; False where this system has none. With `programs`, others may be started."""
    if not filters_system_calls():
        return False
    architecture, calls = CALLS[platform.machine()]
    if programs:
        calls = {name: number for name, number in calls.items() if name not in STARTING}
    code = b"".join(struct.pack("=HBBI", *step) for step in _filter(architecture, calls, os.getpid()))
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    return bool(ctypes.CDLL(None).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0)


def _filter(architecture: int, calls: dict[str, int], pid: int) -> list[Step]:
    steps: list[Step] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, REFUSE),
    ]
    if "clone" in calls:
        # Threads are clones; whoever starts a process, or signals, limits or traces another, is refused.
        steps += _when(calls["clone"], (ANY_BIT, CLONE_THREAD), ALLOW, REFUSE)
        steps += _when(calls["kill"], (EQUAL, pid), ALLOW, REFUSE)
        steps += _when(calls["tgkill"], (EQUAL, pid), ALLOW, REFUSE)
        steps += _when(calls["prlimit64"], (EQUAL, 0), ALLOW, REFUSE)
        steps += _when(calls["prctl"], (EQUAL, PR_SET_PDEATHSIG), REFUSE, ALLOW)
        steps += [(EQUAL, 0, 1, calls["clone3"]), (RETURN, 0, 0, UNKNOWN)]  # its flags lie in memory; libc falls back
    # A lock on what others lock too would hold them up for ever; the other commands of fcntl are for everybody.
    for command in FILE_LOCKS[:-1]:
        steps += _when(calls["fcntl"], (EQUAL, command), REFUSE, None, SECOND_ARGUMENT)
    steps += _when(calls["fcntl"], (EQUAL, FILE_LOCKS[-1]), REFUSE, ALLOW, SECOND_ARGUMENT)
    conditional = {"clone", "clone3", "kill", "tgkill", "prlimit64", "prctl", "fcntl"}
    for name, number in calls.items():
        if name not in conditional:
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    return [*steps, (RETURN, 0, 0, ALLOW)]


def _when(
    number: int, test: tuple[int, int], then: int, otherwise: int | None, argument: int = FIRST_ARGUMENT
) -> list[Step]:
    """Decide one call by the low word of an argument; with no `otherwise`, leave it to the steps that follow."""
    code, operand = test
    return [
        (EQUAL, 0, 4, number),
        (LOAD, 0, 0, argument),
        (code, 0, 1, operand),
        (RETURN, 0, 0, then),
        (LOAD, 0, 0, NUMBER) if otherwise is None else (RETURN, 0, 0, otherwise),
    ]
