"""What is legal in a Graph."""

from __future__ import annotations

from compiler.errors import CompileError, VerifyError
from compiler.ir.graph import Graph, Node, Repeat, TensorType, Value

KINDS = ("input", "weight", "table", "state", "activation")


def verify_graph(graph: Graph) -> None:
    """Raise VerifyError, naming the node, unless `graph` is legal.

    Rules: names are unique; shapes are positive; every value is made before it is used, and once
    (a state may be updated in place by nodes that read it); types are those the ops infer; a region
    has its own activations, which leave it only through carries; carried values agree in type;
    stacked values have one copy for each iteration and are used only inside their region.
    """
    checker = _Checker(graph)
    for node in graph.nodes:
        if isinstance(node, Repeat):
            checker.region(node)
        else:
            checker.node(node, f"{graph.name}: {node.name}", count=0)
    for name in graph.outputs:
        checker.defined(name, f"{graph.name}: output")


class _Checker:
    """Walks the graph in order; `known` are the values that may be read at this point."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = graph.value_map()
        if len(self.values) != len(graph.values):
            raise VerifyError(f"{graph.name}: two values are named {_first_twice(graph.values)!r}")
        self._check_values()
        self.known = {value.name for value in graph.values if value.kind != "activation"}
        self.made: set[str] = set()
        self.node_names: set[str] = set()

    def _check_values(self) -> None:
        for value in self.graph.values:
            where = f"{self.graph.name}: value {value.name}"
            if value.kind not in KINDS:
                raise VerifyError(f"{where}: got kind {value.kind!r}, want one of: {', '.join(KINDS)}")
            if any(size < 1 for size in value.type.shape):
                raise VerifyError(f"{where}: got shape {list(value.type.shape)}, want sizes of 1 or more")
            if value.stacked and value.kind not in ("weight", "state"):
                raise VerifyError(f"{where}: a stacked {value.kind}; only weights and states have copies")

    def _value(self, name: str, where: str) -> Value:
        if name not in self.values:
            raise VerifyError(f"{where}: no value {name!r} in the graph")
        return self.values[name]

    def defined(self, name: str, where: str) -> Value:
        """The value, which must be readable here."""
        value = self._value(name, where)
        if name not in self.known:
            raise VerifyError(f"{where}: reads {name!r} before it is made, or outside its region")
        return value

    def _define(self, name: str, where: str) -> Value:
        """Note that `name` is made here."""
        value = self._value(name, where)
        if value.kind != "activation":
            raise VerifyError(f"{where}: makes {name!r}, which is of kind {value.kind}")
        if name in self.made:
            raise VerifyError(f"{where}: makes {name!r} a second time")
        self.made.add(name)
        self.known.add(name)
        return value

    def _name(self, name: str, where: str) -> None:
        if name in self.node_names:
            raise VerifyError(f"{where}: a second node of this name")
        self.node_names.add(name)

    def node(self, node: Node, where: str, count: int) -> None:
        """Check one node inside a region of `count` iterations (0: outside any)."""
        self._name(node.name, where)
        where = f"{where} ({node.op.kind})"
        ins = [self.defined(name, where) for name in node.inputs]
        self._check_copies(ins, where, count)
        try:
            results = node.op.infer(tuple(value.type for value in ins))
        except CompileError as error:
            raise VerifyError(f"{where}: {error}") from error
        if len(results) != len(node.outputs):
            raise VerifyError(f"{where}: makes {len(results)} values, names {len(node.outputs)}")
        for name, want in zip(node.outputs, results, strict=True):
            self._check_output(node, name, want, where)

    def _check_output(self, node: Node, name: str, want: TensorType, where: str) -> None:
        value = self._value(name, where)
        if value.kind == "state":
            if name not in node.inputs:
                raise VerifyError(f"{where}: updates state {name!r} without reading it")
        else:
            self._define(name, where)
        if value.type != want:
            raise VerifyError(f"{where}: {name}: got type {_text(value.type)}, want {_text(want)}")

    def _check_copies(self, ins: list[Value], where: str, count: int) -> None:
        for value in ins:
            if value.stacked and value.stacked != count:
                place = f"a region of {count} iterations" if count else "outside any region"
                raise VerifyError(f"{where}: reads {value.name!r} with {value.stacked} copies {place}")
            if value.kind == "state" and count and not value.stacked:
                raise VerifyError(f"{where}: state {value.name!r} in a region wants {count} copies")

    def region(self, region: Repeat) -> None:
        """Check a region and close its scope."""
        where = f"{self.graph.name}: {region.name}"
        self._name(region.name, where)
        if region.count < 1:
            raise VerifyError(f"{where}: got count {region.count}, want 1 or more")
        outer = set(self.known)
        types = {}
        for carry in region.carries:
            types[carry.inner] = self.defined(carry.init, where).type
            self._carried(carry.inner, types[carry.inner], where)
        for node in region.nodes:
            self.node(node, f"{where}.{node.name}", region.count)
        for carry in region.carries:
            final = self.defined(carry.final, where)
            if carry.final in outer:
                raise VerifyError(f"{where}: carries {carry.final!r}, which is not made in the region")
            if final.type != types[carry.inner]:
                raise VerifyError(
                    f"{where}: {carry.final}: got type {_text(final.type)}, "
                    f"want that of {carry.inner}, {_text(types[carry.inner])}"
                )
        self.known = outer
        for carry in region.carries:
            self._carried(carry.result, types[carry.inner], where)

    def _carried(self, name: str, want: TensorType, where: str) -> None:
        value = self._define(name, where)
        if value.type != want:
            raise VerifyError(f"{where}: {name}: got type {_text(value.type)}, want {_text(want)}")


def _text(kind: TensorType) -> str:
    return f"{kind.dtype}[{', '.join(map(str, kind.shape))}]"


def _first_twice(values: tuple[Value, ...]) -> str:
    seen: set[str] = set()
    for value in values:
        if value.name in seen:
            return value.name
        seen.add(value.name)
    raise AssertionError("no name occurs twice")
