"""`torch.export` archives without torch: the graph of a `.pt2` file or of its `model.json`.

Format: schema version 8 of torch/_export/serde/schema.py (PyTorch 2.13), read as JSON.
"""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from workloads.errors import WorkloadError

SCHEMA = 8  # major version; others lay the file out differently
# torch/_export/serde/schema.py: ScalarType
DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "fp16", 7: "fp32", 8: "fp64", 12: "bool",
    13: "bf16", 29: "fp8e4", 31: "fp8e5",
}  # fmt: skip

Json = Mapping[str, object]
Argument = object  # a number, string, None, `Name`, or a list of them


@dataclass(frozen=True, slots=True)
class Name:
    """A tensor, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """One node: a target such as `aten.add.Tensor`, its arguments by name, and the module it came from."""

    target: str
    name: str
    args: Mapping[str, Argument]
    outputs: tuple[str, ...]
    path: str


@dataclass(frozen=True, slots=True)
class Exported:
    """The whole program. Roles: parameter, buffer or input of each tensor given; mutations of inputs."""

    calls: tuple[Call, ...]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    parameters: Mapping[str, str]  # argument name -> dotted name in the module
    buffers: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mutations: Mapping[str, str]  # value -> input that it replaces
    symbols: frozenset[str]


def read_archive(path: Path) -> Json:
    """The JSON of a `.pt2` archive, of a bare `model.json`, or of a gzipped one."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                inside = [n for n in archive.namelist() if n.endswith("models/model.json")]
                if not inside:
                    raise WorkloadError(f"{path}: got an archive without models/model.json, want a .pt2 file")
                text = archive.read(inside[0])
        else:
            raw = path.read_bytes()
            text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        found = json.loads(text)
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise WorkloadError(f"{path}: not a torch.export program: {error}") from error
    if not isinstance(found, dict) or "graph_module" not in found:
        raise WorkloadError(f"{path}: got no graph_module, want the model.json of torch.export.save")
    version = found.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if major != SCHEMA:
        raise WorkloadError(
            f"{path}: schema_version: got {version}, want major {SCHEMA}; export it with torch 2.13"
        )
    return found


def parse(where: str, found: Json, bound: Mapping[str, int]) -> Exported:
    """The program of an archive's JSON; `bound` gives symbolic dimensions their sizes.

    Raises WorkloadError naming all symbols that are not bound.
    """
    try:
        return _Parser(bound).parse(found)
    except _Unbound as error:
        have = ", ".join(f"{name} ({place})" for name, place in sorted(error.symbols.items()))
        example = f"{where}:{min(error.symbols)}=128"
        raise WorkloadError(f"{where}: symbolic sizes {have}: want each bound, as in {example}") from error
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise WorkloadError(f"{where}: not laid out as schema {SCHEMA} says: {error!r}") from error


class _Unbound(Exception):
    def __init__(self, symbols: Mapping[str, str]) -> None:
        super().__init__(symbols)
        self.symbols = symbols


def _place(symbol: str, tensors: Mapping[str, Json]) -> str:
    """Which axis of which tensor has that size: the first of the file, an input."""
    for name, tensor in tensors.items():
        for axis, size in enumerate(cast("list[Json]", tensor["sizes"])):
            if f"'{symbol}'" in str(cast("Json", size.get("as_expr") or {}).get("expr_str", "")):
                return f"axis {axis} of {name}"
    return "no tensor"


class _Parser:
    def __init__(self, bound: Mapping[str, int]) -> None:
        self.bound = bound
        self.unbound: set[str] = set()
        self.symbols: set[str] = set()
        self.numbers: dict[str, int] = {}

    def parse(self, found: Json) -> Exported:
        module = cast("dict[str, dict[str, object]]", found["graph_module"])
        graph, signature = module["graph"], module["signature"]
        tensors = cast("dict[str, Json]", graph["tensor_values"])
        shapes = {n: tuple(self._size(s) for s in cast("list[Json]", t["sizes"])) for n, t in tensors.items()}
        dtypes = {n: DTYPES.get(cast("int", t["dtype"]), f"type {t['dtype']}") for n, t in tensors.items()}
        sizes = cast("dict[str, Json]", graph.get("sym_int_values") or {})
        self.numbers = {name: self._size(value) for name, value in sizes.items()}
        calls = tuple(self._call(n) for n in cast("list[Json]", graph["nodes"]))
        if self.unbound:
            raise _Unbound({name: _place(name, tensors) for name in self.unbound})
        roles: dict[str, dict[str, str]] = {"parameter": {}, "buffer": {}}
        inputs: list[str] = []
        for spec in cast("list[dict[str, dict[str, object]]]", signature["input_specs"]):
            kind, body = next(iter(spec.items()))
            arg = cast("dict[str, object]", body.get("arg", {}))
            if kind in ("parameter", "buffer"):
                roles[kind][cast("str", arg["name"])] = cast("str", body[f"{kind}_name"])
            elif kind == "tensor_constant":
                roles["buffer"][cast("str", arg["name"])] = cast("str", body["tensor_constant_name"])
            elif "as_tensor" in arg:
                inputs.append(cast("dict[str, str]", arg["as_tensor"])["name"])
        outputs, mutations = [], {}
        for result in cast("list[dict[str, dict[str, dict[str, object]]]]", signature["output_specs"]):
            kind, out = next(iter(result.items()))
            if kind == "user_output" and "as_tensor" in out["arg"]:
                outputs.append(cast("dict[str, str]", out["arg"]["as_tensor"])["name"])
            elif kind == "user_input_mutation":
                mutations[cast("str", out["arg"]["name"])] = cast("str", out["user_input_name"])
        return Exported(
            calls,
            shapes,
            dtypes,
            roles["parameter"],
            roles["buffer"],
            tuple(inputs),
            tuple(outputs),
            mutations,
            frozenset(self.symbols),
        )

    def _size(self, size: Json) -> int:
        if "as_int" in size:
            return cast("int", size["as_int"])
        text = cast("dict[str, str]", size["as_expr"])["expr_str"]
        return self._symbolic(text)

    def _symbolic(self, text: str) -> int:
        """The value of a size expression such as `2*Symbol('s70', ...)`."""
        plain = re.sub(r"Symbol\('(\w+)'[^)]*\)", r"\1", text)
        names = set(re.findall(r"[A-Za-z_]\w*", plain))
        self.symbols |= names
        missing = names - set(self.bound)
        if missing:
            self.unbound |= missing
            return 1
        if not re.fullmatch(r"[\w\s+*()-]+", plain):
            raise KeyError(f"size {text!r}")
        for name in names:
            plain = re.sub(rf"\b{name}\b", str(self.bound[name]), plain)
        return int(eval(plain, {"__builtins__": {}}))

    def _call(self, node: Json) -> Call:
        args = {
            cast("str", i["name"]): self._argument(cast("Json", i["arg"]))
            for i in cast("list[Json]", node["inputs"])
        }
        outputs: list[str] = []
        for out in cast("list[Json]", node["outputs"]):
            value = self._argument(out)
            outputs += [
                v.name for v in (value if isinstance(value, list) else [value]) if isinstance(v, Name)
            ]
        target = cast("str", node["target"]).removeprefix("torch.ops.")
        stack = cast("dict[str, str]", node.get("metadata") or {}).get("nn_module_stack", "")
        path = stack.split(";")[-1].split(",")[1] if stack.count(",") else ""
        return Call(
            target, cast("str", node.get("name") or (outputs or ["?"])[0]), args, tuple(outputs), path
        )

    def _argument(self, arg: Json) -> Argument:
        kind, value = next(iter(arg.items()))
        if kind == "as_tensor":
            return Name(cast("dict[str, str]", value)["name"])
        if kind in ("as_tensors", "as_nested_tensors"):
            return [Name(v["name"]) for v in cast("list[dict[str, str]]", value)]
        if kind == "as_optional_tensors":
            return [self._argument(v) for v in cast("list[Json]", value)]
        if kind == "as_none":
            return None
        if kind in ("as_sym_int", "as_sym_ints"):
            many = value if isinstance(value, list) else [value]
            sizes = [self._sym(cast("Json", v)) for v in many]
            return sizes if isinstance(value, list) else sizes[0]
        return value

    def _sym(self, value: Json) -> Argument:
        if "as_int" in value:
            return cast("int", value["as_int"])
        return self.numbers[cast("str", value["as_name"])]
