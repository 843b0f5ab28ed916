"""What may be written where: the schema seen as dotted paths, for hints and overrides."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from arch_configs.rules import dotted
from arch_configs.spec import ArchSpec, SystolicSpec, VectorCost, VectorSpec

Shape = object  # a type annotation of the schema: a model, a dict, a tuple or a leaf
ENGINE_KINDS: Mapping[str, type[BaseModel]] = {"systolic": SystolicSpec, "vector": VectorSpec}
FILE_KEYS = ("extends", "schema")  # what a file may say beside the architecture itself


def _plain(shape: Shape) -> Shape:
    """`shape` without Annotated and without None."""
    while True:
        if get_origin(shape) is Annotated:
            shape = get_args(shape)[0]
            continue
        if get_origin(shape) in (Union, types.UnionType):
            real = [item for item in get_args(shape) if item is not type(None)]
            if len(real) == 1:
                shape = real[0]
                continue
        return shape


def model(shape: Shape, value: object) -> type[BaseModel] | None:
    """The model that describes a mapping of this shape; engines are told apart by their `kind`."""
    shape = _plain(shape)
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        return shape
    kinds = set(get_args(shape))
    if kinds == set(ENGINE_KINDS.values()):
        kind = value.get("kind") if isinstance(value, dict) else None
        return ENGINE_KINDS.get(kind) if isinstance(kind, str) else None
    return None


def fields(shape: Shape, value: object) -> tuple[str, ...]:
    """The keys that may stand in a mapping of this shape; () if any name may."""
    found = model(shape, value)
    if found is not None:
        return (*found.model_fields, *(FILE_KEYS if found is ArchSpec else ()))
    shape = _plain(shape)
    if get_origin(shape) is dict:
        key = _plain(get_args(shape)[0])
        return tuple(get_args(key)) if get_origin(key) is Literal else ()
    return ()


def is_mapping(shape: Shape, value: object) -> bool:
    """Whether something of this shape is written as a mapping."""
    return get_origin(_plain(shape)) is dict or model(shape, value) is not None


def is_list(shape: Shape) -> bool:
    """Whether something of this shape is written as a list."""
    return get_origin(_plain(shape)) is tuple


def child(shape: Shape, key: str, value: object) -> Shape:
    """The shape behind `key` of a mapping or list with plain `value`; None if there is none."""
    found = model(shape, value)
    if found is not None:
        field = found.model_fields.get(key)
        return None if field is None else field.annotation
    shape = _plain(shape)
    if get_origin(shape) is dict:
        return get_args(shape)[1]
    return get_args(shape)[0] if get_origin(shape) is tuple else None


def is_cost(shape: Shape) -> bool:
    """Whether this is a cost, for which a bare number may stand."""
    return model(shape, None) is VectorCost


def homes(key: str) -> tuple[str, ...]:
    """Every place of the schema where `key` is a valid key, such as ``memories.<name>.capacity``."""
    return tuple(dotted(path) for path in _walk(ArchSpec, ()) if path[-1] == key)


def all_keys() -> tuple[str, ...]:
    """Every key that is valid somewhere, in schema order."""
    return tuple(dict.fromkeys(path[-1] for path in _walk(ArchSpec, ())))


def _walk(shape: Shape, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    shape = _plain(shape)
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        for name, field in shape.model_fields.items():
            yield (*path, name)
            yield from _walk(field.annotation, (*path, name))
    elif get_origin(shape) is dict:
        key, value = get_args(shape)
        names = get_args(_plain(key)) if get_origin(_plain(key)) is Literal else ("<name>",)
        for name in names:
            yield from ([(*path, name)] if name != "<name>" else [])
            if name == "<name>" or not is_cost(value):
                yield from _walk(value, (*path, name))
    elif get_origin(shape) is tuple:
        yield from _walk(get_args(shape)[0], (*path, "<n>"))
    elif set(get_args(shape)) == set(ENGINE_KINDS.values()):
        for kind, engine in ENGINE_KINDS.items():
            yield from _walk(engine, (*path[:-1], f"<{kind}>"))
