"""Typed look-ups in a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

# How transformers calls an activation -> how we do (compiler/ops/elementwise.py). Its "gelu" is exact.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "tanh": "tanh",
}


class _Within(list[str]):
    """Problems of a part, told to the whole."""

    def __init__(self, outer: list[str], name: str) -> None:
        super().__init__()
        self.outer, self.name = outer, name

    @override
    def append(self, problem: str) -> None:
        self.outer.append(f"{self.name}.{problem}")


class Config:
    """Typed look-ups in a config; problems are collected, so that all are told at once."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.fields = fields
        self.problems: list[str] = []

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number of 1 or more; a missing or null one is `default`."""
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self.problems.append(f"{name}: got {self._got(name)}, want a whole number, 1 or more")
        return 1

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers of 1 or more."""
        value = self.fields.get(name)
        if isinstance(value, list) and value and all(type(v) is int and v >= 1 for v in value):
            return tuple(value)
        self.problems.append(f"{name}: got {self._got(name)}, want a list of whole numbers, 1 or more")
        return ()

    def number(self, name: str, default: float) -> float:
        """A positive number."""
        value = self.fields.get(name, default)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value)
        self.problems.append(f"{name}: got {self._got(name)}, want a number above 0")
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.fields.get(name, default)
        if isinstance(value, bool):
            return value
        self.problems.append(f"{name}: got {self._got(name)}, want true or false")
        return default

    def activation(self, name: str, default: str) -> str:
        """An activation function, by our name."""
        value = str(self.fields.get(name, default))
        if value not in ACTIVATIONS:
            self.problems.append(f"{name}: got {value!r}, want one of: {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS.get(value, "relu")

    def part(self, name: str) -> Config:
        """A config inside this one; its problems are this one's too, under its name."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            self.problems.append(f"{name}: got {self._got(name)}, want an object")
            value = {}
        inner = Config(value)
        inner.problems = _Within(self.problems, name)
        return inner

    def labels(self) -> int:
        """Number of classes; transformers' default is 2."""
        named = self.fields.get("id2label")
        return self.integer("num_labels", len(named) if isinstance(named, dict) and named else 2)

    def divides(self, part: str, count: int, whole: str, size: int) -> None:
        """Note a problem unless `count` divides `size`."""
        if size % count:
            self.problems.append(f"{part}: got {count}, want a divisor of {whole}={size}")

    def chosen_experts(self, count: int) -> int:
        """How many of `count` experts a token goes to."""
        top = self.integer("num_experts_per_tok")
        if top > count:
            self.problems.append(f"num_experts_per_tok: got {top}, want at most {count} experts")
        return min(top, count)

    def _got(self, name: str) -> str:
        return repr(self.fields[name]) if name in self.fields else "nothing"


def rope_base(config: Config) -> float:
    """`rope_theta`, or where transformers 5 keeps it. Long-context scaling costs nothing: left out."""
    nested = config.fields.get("rope_parameters")
    if isinstance(nested, dict) and "rope_theta" in nested:
        return Config(nested).number("rope_theta", 10000.0)
    return config.number("rope_theta", 10000.0)
