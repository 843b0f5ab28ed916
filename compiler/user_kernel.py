"""Kernels of users: a function that calls the `Builder`, and what is needed to build and check it.

    @kernel(inputs={"x": "m n"}, outputs={"y": "m n"}, sizes={"m": 4096, "n": 512}, reference=lambda x: 2 * x)
    def double(b: Builder, x: Tensor, y: Tensor) -> None: ...

Tensors are given in DRAM, row-major, with the axes named. Everything behind the function (addresses,
semaphores, streams, the rules) is what the compiler's own kernels go through.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from typing_extensions import override

from arch_configs.spec import DTYPES, ArchSpec
from compiler.allocation import allocate
from compiler.builder import Builder, Tensor
from compiler.codegen import emit
from compiler.cost import CostModel
from compiler.errors import CompileError, Infeasible, VerifyError
from compiler.ir.graph import TensorType
from compiler.ir.rules import RuleError
from compiler.ir.tiles import TileGraph
from compiler.ir.verify_program import program_macs, verify_program
from compiler.isa import Instr, Program, writes
from compiler.ops.base import Array
from compiler.rows import share_passes
from compiler.sync import plan_sync

__all__ = ["Builder", "CompileError", "Tensor", "UserKernel", "compile_kernel", "kernel"]

Reference = Callable[..., Array | tuple[Array, ...]]
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a kernel: its axes by name, and its type if that is not the kernel's."""

    name: str
    axes: tuple[str, ...]
    dtype: str  # "" is the kernel's


@dataclass(frozen=True, slots=True)
class UserKernel:
    """A kernel with its declared problem; made by `kernel`."""

    name: str
    function: Callable[..., None]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    sizes: tuple[tuple[str, int], ...]  # axes and parameters with their defaults
    parameters: tuple[str, ...]  # those of `sizes` that the function takes by keyword
    small: tuple[tuple[str, int], ...]  # sizes for the check of numerics
    reference: Reference  # float32 arrays of the inputs by name -> the outputs in order
    macs: tuple[str, ...]  # axes whose product is the multiply-accumulates; empty: not declared
    dtype: str

    @property
    def file(self) -> str:
        """Where the kernel was written."""
        return self.function.__code__.co_filename

    @property
    def summary(self) -> str:
        """First line of its docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def resolve(self, given: Sizes | None = None, *, small: bool = False) -> dict[str, int]:
        """All sizes: the defaults, for `small` those of the check, and on top what is given."""
        known = dict(self.sizes)
        wrong = [
            f"{self.name}: sizes: got {name!r}={size}, want {_nearest(name, known)}"
            if name not in known
            else f"{self.name}: sizes: {name}: got {size}, want a whole number from 1"
            for name, size in (given or {}).items()
            if name not in known or size < 1
        ]
        if wrong:
            raise CompileError("\n".join(wrong))
        return {**known, **(dict(self.small) if small else {}), **(given or {})}

    def types(self, values: Sizes, dtype: str | None = None) -> dict[str, TensorType]:
        """Type of every tensor, inputs first."""
        default = dtype or self.dtype
        if default not in DTYPES:
            raise CompileError(f"{self.name}: dtype: got {default!r}, want {_nearest(default, DTYPES)}")
        return {
            operand.name: TensorType(tuple(values[axis] for axis in operand.axes), operand.dtype or default)
            for operand in (*self.inputs, *self.outputs)
        }


def kernel(
    *,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    sizes: Sizes,
    reference: Reference,
    small: Sizes | None = None,
    macs: str = "",
    dtype: str = "bf16",
) -> Callable[[Callable[..., None]], UserKernel]:
    """Declare a function as a kernel.

    `inputs` and `outputs` give the axes of each tensor, e.g. `"k m"` or `"k m:fp32"`, in the order of the
    function's arguments behind the Builder. `sizes` are defaults of all axes; keyword-only arguments with a
    whole number as default are sizes too. `small` holds the sizes of the numerics check. `macs`: axes whose
    product is the multiply-accumulates that the program must have.
    """

    def declare(function: Callable[..., None]) -> UserKernel:
        named = inspect.signature(function).parameters.values()
        found = {p.name: p.default for p in named if p.kind is inspect.Parameter.KEYWORD_ONLY}
        declared = UserKernel(
            name=function.__name__,
            function=function,
            inputs=tuple(_operand(*item) for item in inputs.items()),
            outputs=tuple(_operand(*item) for item in outputs.items()),
            sizes=tuple({**sizes, **found}.items()),
            parameters=tuple(found),
            small=tuple((small or {}).items()),
            reference=reference,
            macs=tuple(macs.split()),
            dtype=dtype,
        )
        _check(declared, [p.name for p in named if p.kind is not inspect.Parameter.KEYWORD_ONLY][1:])
        return declared

    return declare


def _operand(name: str, axes: str) -> Operand:
    text, _, dtype = axes.partition(":")
    return Operand(name, tuple(text.split()), dtype.strip())


def _check(declared: UserKernel, arguments: list[str]) -> None:
    """Raise for a declaration that does not fit the function or itself, all problems at once."""
    known, operands = dict(declared.sizes), (*declared.inputs, *declared.outputs)
    names = [operand.name for operand in operands]
    problems = []
    if arguments != names:
        problems.append(f"got arguments {', '.join(arguments)} behind the Builder, want {', '.join(names)}")
    used = [(f"tensor {operand.name}", axis) for operand in operands for axis in operand.axes]
    used += [("macs", axis) for axis in declared.macs]
    used += [("small", axis) for axis, _ in declared.small]
    problems += [
        f"{where}: got {axis!r}, want {_nearest(axis, known)}" for where, axis in used if axis not in known
    ]
    problems += [
        f"size {name}: got {size!r}, want a whole number"
        for name, size in known.items()
        if not isinstance(size, int)
    ]
    if problems:
        line = declared.function.__code__.co_firstlineno
        where = f"{declared.file}:{line}: kernel {declared.name}"
        raise CompileError("\n".join(f"{where}: {problem}" for problem in problems))


def _nearest(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"one of {', '.join(known)}" + (f"; did you mean {close[0]!r}?" if close else "")


# ---- compilation ---------------------------------------------------------------------------------


def compile_kernel(
    kernel: UserKernel,
    arch: ArchSpec,
    sizes: Sizes | None = None,
    *,
    dtype: str | None = None,
    cost: CostModel | None = None,
) -> Program:
    """The verified program of `kernel` for one core of `arch`.

    Raises: Infeasible (it does not fit) or CompileError (VerifyError for a broken rule), which name the
    kernel and, where it is known, its line.
    """
    values = kernel.resolve(sizes)
    types = kernel.types(values, dtype)
    try:
        return _compiled(kernel, arch, values, types, cost, Builder)
    except Infeasible as error:
        error.add_note(f"{kernel.file}: kernel {kernel.name}")
        raise
    except VerifyError as error:
        raise _located(error, kernel, arch, values, types, cost) from error


def _compiled(
    kernel: UserKernel,
    arch: ArchSpec,
    values: Sizes,
    types: Mapping[str, TensorType],
    cost: CostModel | None,
    make: type[Builder],
) -> Program:
    """Build, place, synchronise, emit, verify: first software-pipelined, without where that has no room."""
    try:
        tiles = _build(kernel, make(arch, kernel.name, cost), values, types)
        placement = allocate(tiles, arch)
    except Infeasible:
        tiles = _build(kernel, make(arch, kernel.name, cost, pipelined=False), values, types)
        placement = allocate(tiles, arch)
    outputs = tuple(operand.name for operand in kernel.outputs)
    shapes = tuple((name, type_.shape) for name, type_ in types.items())
    program = emit(tiles, placement, plan_sync(tiles, placement), outputs=outputs, shapes=shapes)
    verify_program(program, arch)
    want, got = prod(values[axis] for axis in kernel.macs), program_macs(program)[0]
    if kernel.macs and want != got:
        axes = " * ".join(kernel.macs)
        raise VerifyError(f"the program has {got} multiply-accumulates, want {axes} = {want}")
    return program


def _build(kernel: UserKernel, b: Builder, values: Sizes, types: Mapping[str, TensorType]) -> TileGraph:
    outputs = {operand.name for operand in kernel.outputs}
    tensors = {
        name: b.dram(name, type_.shape, type_.dtype, kind="output" if name in outputs else "input")
        for name, type_ in types.items()
    }
    b.begin(kernel.name)
    call(kernel, b, list(tensors.values()), values, sorted(outputs))
    share_passes(b.graph.root, b.arch)
    return b.graph


def call(
    kernel: UserKernel, b: Builder, tensors: Sequence[Tensor], values: Sizes, outputs: Sequence[str]
) -> None:
    """Run the user's function, inputs first; `outputs` are the buffers that it must write.

    Raises: Infeasible, or CompileError with the line.
    """
    parameters = {name: values[name] for name in kernel.parameters}
    try:
        kernel.function(b, *tensors, **parameters)
    except Infeasible:
        raise
    except Exception as error:  # the user's own code: whatever it raises is the user's mistake
        kind = "" if isinstance(error, CompileError) else f"{type(error).__name__}: "
        raise CompileError(f"{_where(error, kernel)}: kernel {kernel.name}: {kind}{error}") from error
    written = {access.buffer for node in b.graph.root.instructions() for access in writes(node.instr)}
    missing = [name for name in outputs if name not in written]
    if missing:
        raise CompileError(f"{kernel.file}: kernel {kernel.name}: never writes {', '.join(missing)}")


def _where(error: Exception, kernel: UserKernel) -> str:
    """File and line of the kernel's file that was at work."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == kernel.file]
    return f"{kernel.file}:{frames[-1].lineno}" if frames else kernel.file


class _LineBuilder(Builder):
    """Names each instruction by the line of its file, so that a broken rule can be shown there."""

    @override
    def _emit(self, stream: str, instr: Instr) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == Builder.__module__:
            frame = frame.f_back
        super()._emit(stream, replace(instr, op=f"{frame.f_code.co_filename}:{frame.f_lineno}"))


def _located(
    error: VerifyError,
    kernel: UserKernel,
    arch: ArchSpec,
    values: Sizes,
    types: Mapping[str, TensorType],
    cost: CostModel | None,
) -> VerifyError:
    """`error` with the kernel's name and, if building again with lines breaks a rule too, the line."""
    try:
        _compiled(kernel, arch, values, types, cost, _LineBuilder)
    except VerifyError as again:
        error = again
    where = f"{kernel.file}: kernel {kernel.name}"
    if isinstance(error, RuleError):
        return RuleError(error.rule, f"{where}: {error.text}")
    return VerifyError(f"{where}: {error}")
