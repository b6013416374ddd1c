"""Convert frozen dataclasses to JSON and back, and make their JSON schema, from annotations.

The descriptions in the schema are those of the attributes in the docstrings of the dataclasses.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from inspect import cleandoc
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

__all__ = [
    "decoded",
    "encoded",
    "schema_of",
]

_SCALARS: Final[dict[Any, str]] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def encoded(value: Any) -> Any:
    """Return a value as JSON takes it: dataclasses become objects, tuples become arrays."""
    if is_dataclass(value):
        return {field.name: encoded(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [encoded(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Mapping):
        return {str(key): encoded(item) for key, item in cast("Mapping[object, object]", value).items()}
    return value


def decoded(cls: Any, value: Any, where: str = "") -> Any:
    """Return the object that `encoded` turned into a value. Unknown keys are ignored.

    Parameters
    ----------
    cls : type
        The annotation of the object, such as a dataclass or ``tuple[int, ...]``.
    value : object
        The value, as ``json.loads`` returns it.
    where : str, default ""
        The path to the value, for the message of an error.

    Raises
    ------
    ValueError
        The value is not of that type. The message says what was found where.
    """
    origin = get_origin(cls)
    if origin in (Union, types.UnionType):
        options = get_args(cls)
        if value is None and type(None) in options:
            return None
        [option] = [option for option in options if option is not type(None)]
        return decoded(option, value, where)
    if origin is Literal:
        if value not in get_args(cls):
            raise _wrong(where, value, f"one of {', '.join(map(repr, get_args(cls)))}")
        return value
    if origin is tuple:
        return _decoded_tuple(get_args(cls), value, where)
    if origin is not None and issubclass(origin, Mapping):
        if type(value) is not dict:
            raise _wrong(where, value, "an object")
        _, item = get_args(cls)
        return {key: decoded(item, part, f"{where}.{key}") for key, part in cast("dict[str, Any]", value).items()}
    if is_dataclass(cls):
        return _decoded_object(cls, value, where)
    if cls is float and type(value) is int:
        return float(value)
    if type(value) is not cls:
        raise _wrong(where, value, f"of type {_SCALARS[cls]}")
    return value


def schema_of(cls: Any) -> dict[str, Any]:
    """Return the JSON schema of an encoded dataclass, with a definition for each dataclass in it.

    Source: https://json-schema.org/draft/2020-12
    """
    definitions: dict[str, Any] = {}
    schema = _schema(cls, definitions)
    return {**schema, "$defs": dict(sorted(definitions.items()))}


def _decoded_tuple(items: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if type(value) is not list:
        raise _wrong(where, value, "an array")
    values: list[Any] = value  # pyright: ignore[reportUnknownVariableType] (from object)
    if len(items) == 2 and items[1] is ...:
        return tuple(decoded(items[0], part, f"{where}[{index}]") for index, part in enumerate(values))
    if len(values) != len(items):
        raise _wrong(where, values, f"an array of {len(items)}")
    return tuple(
        decoded(item, part, f"{where}[{index}]") for index, (item, part) in enumerate(zip(items, values, strict=True))
    )


def _decoded_object(cls: Any, value: Any, where: str) -> Any:
    if type(value) is not dict:
        raise _wrong(where, value, "an object")
    given = cast("dict[str, Any]", value)
    found: dict[str, Any] = {}
    for name, hint, has_default in _fields_of(cls):
        path = f"{where}.{name}" if where else name
        if name in given:
            found[name] = decoded(hint, given[name], path)
        elif not has_default:
            raise ValueError(f"{path} is missing")
    return cls(**found)


@lru_cache(maxsize=64)
def _fields_of(cls: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return the name and annotation of each field, and whether it has a default."""
    hints = get_type_hints(cls)
    return tuple(
        (field.name, hints[field.name], field.default is not MISSING or field.default_factory is not MISSING)
        for field in fields(cls)
    )


def _wrong(where: str, value: object, expected: str) -> ValueError:
    text = repr(value)
    return ValueError(f"{where or 'it'} is {text if len(text) <= 40 else text[:39] + '…'}, not {expected}")


def _schema(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin = get_origin(cls)
    if origin in (Union, types.UnionType):
        [option] = [option for option in get_args(cls) if option is not type(None)]
        return {"anyOf": [_schema(option, definitions), {"type": "null"}]}
    if origin is Literal:
        return {"enum": list(get_args(cls))}
    if origin is tuple:
        items = get_args(cls)
        if len(items) == 2 and items[1] is ...:
            return {"type": "array", "items": _schema(items[0], definitions)}
        return {
            "type": "array",
            "prefixItems": [_schema(item, definitions) for item in items],
            "minItems": len(items),
            "maxItems": len(items),
        }
    if origin is not None:
        return {"type": "object", "additionalProperties": _schema(get_args(cls)[1], definitions)}
    if not is_dataclass(cls):
        return {"type": _SCALARS[cls]}
    return _definition(cls, definitions)


def _definition(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name: str = cls.__name__
    if name not in definitions:
        definitions[name] = {}
        described = _descriptions(cls)
        definitions[name].update(
            {
                "type": "object",
                "description": (cls.__doc__ or "").partition("\n")[0],
                "properties": {
                    field: {
                        **_schema(hint, definitions),
                        **({"description": described[field]} if field in described else {}),
                    }
                    for field, hint, _ in _fields_of(cls)
                },
                "required": [field for field, _, _ in _fields_of(cls)],
            }
        )
    return {"$ref": f"#/$defs/{name}"}


def _descriptions(cls: Any) -> dict[str, str]:
    """Return the text of each attribute in the docstring of a class."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in cleandoc(cls.__doc__ or "").partition("Attributes\n")[2].splitlines()[1:]:
        if line.startswith(" "):
            for name in names:
                found[name] = f"{found.get(name, '')} {line.strip()}".lstrip()
        else:
            names = [name.strip() for name in line.partition(" : ")[0].split(",")]
    return found
