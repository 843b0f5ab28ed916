"""Simulate a compiled program on an architecture: `simulate(program, arch) -> Trace`."""

from eventsim.bind import BoundInstr, BoundProgram, BoundStream, bind
from eventsim.errors import Deadlock, SimError, Waiting
from eventsim.sim import simulate, simulate_bound
from eventsim.trace import StreamTrace, Trace, instances

__all__ = [
    "BoundInstr",
    "BoundProgram",
    "BoundStream",
    "Deadlock",
    "SimError",
    "StreamTrace",
    "Trace",
    "Waiting",
    "bind",
    "instances",
    "simulate",
    "simulate_bound",
]
