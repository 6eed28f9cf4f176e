"""Programs of a sandbox: kept alive, ended on request and with their starter."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from hami_sandbox.programs import Program, Programs, environment, python
from sandbox.tests.unit.runtime.bench import is_alive
from tests.unit.kube.following import until

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
#: A program that leaves a daemon behind, which watches the lifeline as containers do.
PARENT = """
import os, subprocess, sys, time
daemon = subprocess.Popen(
    [sys.executable, "-c", "import os; os.read(int(os.environ['HAMI_SANDBOX_LIFELINE']), 1)"],
    pass_fds=(int(os.environ["HAMI_SANDBOX_LIFELINE"]),), start_new_session=True,
)
print(daemon.pid, flush=True)
time.sleep(600)
"""
#: A supervisor of its own process, to be killed without warning.
SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from hami_sandbox.programs import Programs, python

async def main():
    programs = Programs(Path(sys.argv[1]))
    program = await programs.start("parent", python("-c", sys.argv[2]))
    while not program.last_lines():
        await asyncio.sleep(0.02)
    print(program.pid, program.last_lines()[0], flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def started(programs: Programs, code: str) -> Program:
    program = await programs.start("one", python("-c", code))
    await until(program.last_lines)
    return program


async def test_a_killed_program_comes_back_as_another_process(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    try:
        program = await started(programs, SLEEPER)
        killed = program.kill()
        assert killed is not None
        await until(lambda: program.pid not in (None, killed))
        assert program.restarts == 1
        await until(lambda: program.last_lines() == ["up", "up"])
    finally:
        await programs.close()


async def test_a_stopped_program_stays_away_until_it_is_started(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    try:
        program = await started(programs, SLEEPER)
        before = program.pid
        await program.stop()
        assert program.pid is None
        assert before is not None
        assert not is_alive(before)
        await program.start()
        await until(lambda: program.last_lines() == ["up", "up"])
    finally:
        await programs.close()


async def test_a_program_that_ignores_being_told_is_ended_nevertheless(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
    program = await started(programs, deaf)
    pid = program.pid
    assert pid is not None
    await programs.close()
    assert not is_alive(pid)


async def test_what_programs_leave_behind_is_over_when_close_returns(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    program = await started(programs, PARENT)
    daemon = int(program.last_lines()[0])
    program.kill()
    await until(lambda: program.restarts)
    assert is_alive(daemon)
    await programs.close()
    assert not is_alive(daemon)


async def test_other_children_are_left_alone(tmp_path: Path) -> None:
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", SLEEPER)
    programs = Programs(tmp_path)
    await started(programs, SLEEPER)
    await programs.close()
    assert is_alive(other.pid)
    other.kill()
    await other.wait()


async def test_programs_and_daemons_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    supervisor = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SUPERVISOR, str(tmp_path), PARENT),
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert supervisor.stdout is not None
    program, daemon = map(int, (await supervisor.stdout.readline()).split())
    assert is_alive(program)
    assert is_alive(daemon)
    supervisor.kill()
    await supervisor.wait()
    await until(lambda: not is_alive(program) and not is_alive(daemon))
