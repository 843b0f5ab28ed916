"""What the arguments of a lowered function are: weights, inputs, or positions in a cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from workloads.importers.stablehlo.reader import Block, Module, Operation, Type, is_float

VIEWS = ("convert", "transpose", "reshape", "broadcast_in_dim", "slice", "dynamic_slice")
PARAMETERS = re.compile(r"^(p|params?|weights?|variables|state|model|theta)\b.*[\[.]", re.IGNORECASE)


def argument_names(module: Module) -> list[str]:
    """A name for each argument: `P['layers'][0]['q']` is layers.0.q; arg3 without debug information."""
    names: list[str] = []
    main = module.main
    for (name, _), label in zip(main.block.arguments, main.labels, strict=True):
        words = re.findall(r"\w+", label)
        words = words[1:] if len(words) > 1 and "[" in label else words
        full = ".".join(words) or name[1:]
        names.append(full if full not in names else f"{full}.{name[1:]}")
    return names


def positions(module: Module) -> dict[str, int]:
    """Arguments of one whole number in functions that update caches, at first the last place of these."""
    rooms = [
        old
        for function in module.functions.values()
        for op in _walk(function.block)
        if op.kind == "stablehlo.dynamic_update_slice"
        for old, new in zip(op.type.shape, op.operand_types[1].shape, strict=True)
        if old != new
    ]
    if not rooms:
        return {}
    arguments = zip(argument_names(module), module.main.block.arguments, strict=True)
    return {
        name: min(rooms) - 1
        for name, (_, kind) in arguments
        if kind.shape in ((), (1,)) and not is_float(kind.dtype) and kind.dtype != "i1"
    }


def _walk(block: Block) -> list[Operation]:
    return [o for op in block.operations for o in (op, *(i for region in op.regions for i in _walk(region)))]


def inputs(module: Module) -> set[int]:
    """Arguments of real numbers that are no weights, by their use and their names."""
    main = module.main
    votes: set[int] = set()
    _vote(module, main.block, list(range(len(main.block.arguments))), votes)
    kinds = [kind for _, kind in main.block.arguments]
    named = {i for i, label in enumerate(main.labels) if PARAMETERS.match(label)}
    found = {i for i in votes if is_float(kinds[i].dtype) or kinds[i].dtype == "i8"} - named
    has_others = any(not is_float(kind.dtype) for kind in kinds)
    if not found and not has_others and kinds:
        rest = [i for i in range(len(kinds)) if i not in named]
        found = set(rest[-1:])
    return found


def _vote(module: Module, block: Block, given: Sequence[int | None], votes: set[int]) -> list[int | None]:
    """Follow views of arguments through a block; collects those used as data, gives what is returned."""
    views: dict[str, int | None] = {n: v for (n, _), v in zip(block.arguments, given, strict=False)}
    types: dict[str, Type] = dict(block.arguments)
    for op in block.operations:
        seen = [views.get(name) for name in op.operands]
        kind = op.kind.rsplit(".", 1)[-1]
        types[op.name] = op.type
        if kind == "return":
            return seen
        if kind == "call":
            target = re.search(r"@([\w$.\"]+)", op.text)
            function = module.functions.get(target[1].strip('"')) if target else None
            if function is not None:
                found = _vote(module, function.block, seen, votes)
                views[op.name] = found[0] if found else None
        elif kind == "while":
            _vote(module, op.regions[-1], seen, votes)
            views |= {f"{op.name}#{i}": v for i, v in enumerate(seen)}
        elif kind in VIEWS:
            views[op.name] = seen[0] if seen else None
        else:
            votes.update(_used_as_data(kind, op, seen, types))
    return []


def _used_as_data(kind: str, op: Operation, seen: Sequence[int | None], types: dict[str, Type]) -> list[int]:
    mine = [v for v in seen if v is not None]
    if not mine:
        return []
    if kind in ("dot_general", "convolution"):
        is_batched = "batching_dims" in op.text
        if is_batched:
            return mine
        return mine[:1] if len(mine) == 2 and seen[0] is not None else []
    if kind == "dynamic_update_slice":
        return mine[:1] if seen[0] is not None else []
    if kind in ("gather", "concatenate", "select") or any(len(op.type.shape) < 2 for _ in mine):
        return []
    if len(seen) == 1 or (len(set(mine)) == 1 and len(mine) > 1) or kind == "reduce":
        return mine
    if len(mine) > 1:  # the larger of two that are combined
        return [
            max(
                zip(mine, op.operands, strict=False),
                key=lambda pair: prod(types[pair[1]].shape) if pair[1] in types else 0,
            )[0]
        ]
    return []
