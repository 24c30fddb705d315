"""The supervisor's second thread: it obeys the caller, notices how each rank ends, and sees to it that all of them do.

elastic gives ranks that are stuck in native code 30 s after a SIGTERM, may not notice a dead rank while a grandchild
holds its pipe, and knows nothing of the caller. So the deadlines are kept here.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from hfscale.launching.channel import receive_message
from hfscale.launching.folders import OUTCOME, PAYLOAD, RESULT, SUPERVISOR
from hfscale.launching.processes import Process, read_json, write_json
from hfscale.launching.request import LaunchRequest

GRACE_SECONDS = 2.5  # from the first failed rank, or from the last rank's end, to the end of everything
STACK_SECONDS = 0.5  # for ranks to write where they are, before a time limit ends them


class Watch(threading.Thread):
    """Looks after the ranks of one launch. `finish` ends the launch, from whichever thread comes first."""

    def __init__(self, request: LaunchRequest, control: socket.socket):
        super().__init__(name="watch", daemon=True)
        self.request, self.control, self.folder = request, control, Path(request.folder)
        self.supervisor = os.getpid()
        self.ranks: dict[int, Process] = {}
        self.exits: dict[int, dict] = {}  # rank -> {"code": as subprocess counts it, None if unknown; "time"}
        self.stopped: str | None = None
        self.timed_out = False
        self._exit_fds: dict[int, int] = {}  # descriptor that becomes readable when the rank ends -> rank
        self._deadline: float | None = None
        self._once = threading.Lock()

    def run(self) -> None:
        try:
            self._look_after_ranks()
        except Exception:  # without this thread nothing would end a stuck rank
            traceback.print_exc()
            self.finish()

    def _look_after_ranks(self) -> NoReturn:
        limit = self.request.started + self.request.timeout if self.request.timeout else float("inf")
        while True:
            self._wait_for_something(limit)
            self._notice_ranks()
            now = time.time()
            if now > limit and self._deadline is None:
                self._note_stacks()
                self.timed_out = True
                self.finish()
            if self._deadline is not None and now > self._deadline:
                self.finish()

    def finish(self, error: BaseException | None = None) -> NoReturn:
        """Write the outcome and end every process of the launch, this one too. `error` is what the launcher raised."""
        self._once.acquire()  # never released: the other thread waits for the end
        try:
            for process in self.ranks.values():
                process.send(signal.SIGKILL)
            self._write_outcome(error)
        finally:
            os.killpg(self.supervisor, signal.SIGKILL)  # what ranks have started, and ourselves
            os._exit(1)

    # -- what happens -------------------------------------------------------------------------------------------

    def _wait_for_something(self, limit: float) -> None:
        all_watched = len(self.exits) + len(self._exit_fds) == self.request.world_size
        slice_seconds = 0.5 if all_watched else 0.05
        until = min(limit, self._deadline or limit) - time.time()
        watched = [self.control, *self._exit_fds]
        readable, _, _ = select.select(watched, [], [], max(0.0, min(slice_seconds, until)))
        if self.control in readable:
            self._obey()
        for fd in readable:
            if fd in self._exit_fds:
                self._note_exit(self._exit_fds.pop(fd), fd)

    def _obey(self) -> None:
        message = receive_message(self.control)
        if message is None:
            self.stopped = "the process that started it has ended"
            self.finish()
        self.stopped = "it was stopped"
        for process in self.ranks.values():
            process.send(signal.SIGTERM)
        self._bring_forward(message["grace"])

    def _notice_ranks(self) -> None:
        """Learn of new ranks from their records, and of ended ones where there is no descriptor to wait on."""
        for rank in self.request.ranks:
            if rank not in self.ranks and (process := Process.read(self.folder / f"rank{rank}.pid")):
                self.ranks[rank] = process
                if self.stopped:
                    process.send(signal.SIGTERM)
                if hasattr(os, "pidfd_open"):
                    with contextlib.suppress(OSError):  # already reaped, or a sandbox without this call
                        self._exit_fds[os.pidfd_open(process.pid)] = rank
                        continue
            if rank in self.ranks and rank not in self.exits and not self.ranks[rank].alive:
                self._note_exit(rank)

    def _note_exit(self, rank: int, pidfd: int | None = None) -> None:
        code = None
        if pidfd is not None:
            # Look without reaping: that is elastic's business, which may have been faster.
            with contextlib.suppress(ChildProcessError):
                seen = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                if seen:
                    code = seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
            os.close(pidfd)
        self.exits[rank] = {"code": code, "time": time.time()}
        without_value = not self.request.value_path(rank).exists()
        if without_value or len(self.exits) == self.request.world_size:
            self._bring_forward(GRACE_SECONDS)

    def _bring_forward(self, seconds: float) -> None:
        self._deadline = min(self._deadline or float("inf"), time.time() + seconds)

    def _note_stacks(self) -> None:
        """Have each rank write its stack for the report on the time limit; faulthandler works inside native code."""
        for process in self.ranks.values():
            process.send(signal.SIGUSR1)
        time.sleep(STACK_SECONDS)

    # -- the end ------------------------------------------------------------------------------------------------

    def _write_outcome(self, error: BaseException | None) -> None:
        self._take_exits_from(error)
        outcome = self._outcome(error)
        if outcome["state"] == "finished" and self.request.values == "json":
            self._gather_values()
        write_json(self.folder / OUTCOME, outcome)
        self._tidy()  # after it: a folder without an outcome whose processes are gone is one that was killed

    def _outcome(self, error: BaseException | None) -> dict:
        complete = all(self.request.value_path(rank).exists() for rank in self.request.ranks)
        state = "finished" if complete else "stopped" if self.stopped else "failed"
        return {
            "state": state,
            "reason": self.stopped if state == "stopped" else "time limit" if self.timed_out and not complete else None,
            "launcher_error": f"{type(error).__name__}: {error}" if error and not self.ranks else None,
            "exits": {str(rank): seen for rank, seen in sorted(self.exits.items())},
            "seconds": round(time.time() - self.request.started, 3),
        }

    def _take_exits_from(self, error: BaseException | None) -> None:
        """elastic knows how the rank that it saw fail has ended, which matters where it reaped it before we looked."""
        for rank, failure in getattr(error, "failures", {}).items():
            seen = self.exits.setdefault(rank, {"code": None, "time": failure.timestamp})
            if seen["code"] is None:
                seen["code"] = failure.exitcode

    def _gather_values(self) -> None:
        paths = [self.request.value_path(rank) for rank in self.request.ranks]
        write_json(self.folder / RESULT, {"by_rank": [read_json(path) for path in paths]})
        for path in paths:
            path.unlink()

    def _tidy(self) -> None:
        shutil.rmtree(self.folder / ".elastic", ignore_errors=True)
        for name in (PAYLOAD, SUPERVISOR, *(f"rank{rank}.pid" for rank in self.request.ranks)):
            (self.folder / name).unlink(missing_ok=True)
        for stack in self.folder.glob("rank*.stack"):
            if not stack.stat().st_size:
                stack.unlink()
