"""The forms of a mutation: other fields in an instruction, an operand, a buffer, a channel or a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mutations import Found, edit, instructions, move, rewire
from real_programs import Case

from arch_configs.spec import ArchSpec
from compiler.isa import (
    Access,
    Activate,
    AffineSelect,
    Buffer,
    Copy,
    Instr,
    Memset,
    Program,
    Reduce,
    TensorScalar,
    TensorTensor,
)

VECTOR = (Activate, AffineSelect, Copy, Memset, Reduce, TensorScalar, TensorTensor)
Kinds = type[Instr] | tuple[type[Instr], ...]
Broken = tuple[Program, ArchSpec, str]
Change = Callable[[Any, Case], dict[str, Any] | None]


@dataclass(frozen=True)
class Mutation:
    """A rule and an edit that breaks it."""

    rule: str
    what: str
    apply: Callable[[Case], Iterator[Broken]]


def op(found: Found) -> str:
    return f"op {found[2].op!r}"


def at(kinds: Kinds, change: Change) -> Callable[[Case], Iterator[Broken]]:
    """Other fields in the first instruction of a kind for which `change` has some."""

    def apply(case: Case) -> Iterator[Broken]:
        for found in instructions(case.program):
            changes = change(found[2], case) if isinstance(found[2], kinds) else None
            if changes:
                yield edit(case.program, found, **changes), case.arch, op(found)
                return

    return apply


def operand(kinds: Kinds, field: str, change: Callable[[Access, Case], dict[str, Any] | None]) -> Any:
    """Another operand in the first instruction of a kind."""

    def inside(instr: Instr, case: Case) -> dict[str, Any] | None:
        access = getattr(instr, field, None)
        changes = change(access, case) if isinstance(access, Access) else None
        return {field: replace(access, **changes)} if changes else None

    return at(kinds, inside)


def buffers(
    want: Callable[[Buffer, Case], bool], change: Callable[[Buffer, Case], dict[str, Any]]
) -> Callable[[Case], Iterator[Broken]]:
    """Another first buffer of those wanted."""

    def apply(case: Case) -> Iterator[Broken]:
        for buffer in case.program.buffers:
            if want(buffer, case):
                yield move(case.program, buffer.name, **change(buffer, case)), case.arch, repr(buffer.name)
                return

    return apply


def channels(change: Callable[[Case], dict[str, Any]]) -> Callable[[Case], Iterator[Broken]]:
    def apply(case: Case) -> Iterator[Broken]:
        name = case.program.channels[0].name
        yield rewire(case.program, name, **change(case)), case.arch, repr(name)

    return apply


def on_chip(buffer: Buffer, case: Case) -> bool:
    return bool(buffer.partitions)


def in_dram(buffer: Buffer, case: Case) -> bool:
    return not buffer.partitions


def home(case: Case, access: Access) -> Buffer:
    return case.program.buffer_map()[access.buffer]


def machine(case: Case, **array: Any) -> ArchSpec:
    """The same machine with another matrix engine."""
    name = case.arch.tensor
    engine = case.arch.engines[name].model_copy(update=array)
    return case.arch.model_copy(update={"engines": {**case.arch.engines, name: engine}})
