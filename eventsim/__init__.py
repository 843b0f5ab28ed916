"""Simulate a compiled program on an architecture: `simulate(program, arch) -> Trace`."""

from eventsim.bind import BoundInstr, BoundProgram, BoundStream, bind
from eventsim.errors import Deadlock, SimError, Waiting
from eventsim.path import PathRow, critical_path
from eventsim.perfetto import write_perfetto
from eventsim.sim import simulate, simulate_bound
from eventsim.stats import Bounds, audit, bounds, utilization
from eventsim.trace import StreamTrace, Trace, instances, num_records, records

__all__ = [
    "BoundInstr",
    "BoundProgram",
    "BoundStream",
    "Bounds",
    "Deadlock",
    "PathRow",
    "SimError",
    "StreamTrace",
    "Trace",
    "Waiting",
    "audit",
    "bind",
    "bounds",
    "critical_path",
    "instances",
    "num_records",
    "records",
    "simulate",
    "simulate_bound",
    "utilization",
    "write_perfetto",
]
