"""Translates pydantic's errors into the terms of a study file: the broken rule, the value and the nearest valid
name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hpo.errors import MOST_FAULTS
from search_spaces.names import did_you_mean
from search_spaces.space import SearchSpaceError

Location = tuple[str | int, ...]


class SpecFaultsError(ValueError):
    """Several faults in one model, each with its location within the model."""

    def __init__(self, faults: Sequence[tuple[Location, str]]) -> None:
        super().__init__("\n".join(message for _, message in faults))
        self.faults = tuple(faults)


def dotted_location(location: Location) -> str:
    """Format a location for messages: ``ladder[2]``, ``budget.trials``."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in location
    ).lstrip(".")


def shown_value(value: Any) -> str:
    """Format a value for a message, in at most one line."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def explain_fault(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Location, str]]:
    """Yield the location and message of every fault that pydantic found in ``model``."""
    errors = error.errors(include_url=False)[: MOST_FAULTS + 1]
    meant = {
        (*fault["loc"][:-1], _nearest_key(model, fault["loc"]))
        for fault in errors
        if fault["type"] == "extra_forbidden"
    }
    for fault in errors:
        location = tuple(part for part in fault["loc"] if part != "[key]")
        if location[:1] == ("data",):
            location = location[:2]  # deeper keys mix in types that pydantic tried
        cause = fault.get("ctx", {}).get("error")
        if isinstance(cause, SpecFaultsError):
            yield from (((*location, *below), message) for below, message in cause.faults)
        elif isinstance(cause, SearchSpaceError):
            yield from (
                ((*location, *filter(None, [name])), message) for name, message in cause.faults
            )
        elif fault["type"] == "missing":
            if location not in meant:  # a misspelt key is one fault, not two
                yield location, f"{dotted_location(location)} is missing; write {location[-1]}: ..."
        elif fault["type"] == "extra_forbidden":
            yield location, _unknown_key(model, location)
        else:
            yield location, f"{dotted_location(location)} {_rule(fault, cause)}"


_WANTED: dict[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "finite_number": "a finite number",
    "string_too_short": "text of at least one character",
    "too_short": "a list of at least one value",
}
_BOUND: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than": lambda bound: f"above {bound['gt']:g}",
    "less_than_equal": lambda bound: f"at most {bound['le']:,}",
    "string_too_long": lambda bound: f"text of at most {bound['max_length']:,} characters",
    "too_long": lambda bound: f"a list of at most {bound['max_length']:,} values",
    "literal_error": lambda bound: f"one of {bound['expected']}".replace("'", ""),
}


def _rule(fault: Any, cause: BaseException | None) -> str:
    if cause is not None:
        return str(cause)
    kind, got = fault["type"], fault["input"]
    if kind in _WANTED:
        quotes = f'; put it in quotes, "{got}"' if kind == "string_type" and _is_scalar(got) else ""
        return f"must be {_WANTED[kind]}, but got {shown_value(got)}{quotes}"
    if kind in _BOUND:
        names = fault["ctx"].get("expected", "").replace("'", "").replace(" or ", ", ").split(", ")
        return f"must be {_BOUND[kind](fault['ctx'])}, but got {shown_value(got)}{did_you_mean(str(got), names)}"
    return f"breaks a rule: {fault['msg']}, but got {shown_value(got)}"


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _unknown_key(model: type[BaseModel], location: Location) -> str:
    names = _keys(model, location[:-1])
    hint = did_you_mean(str(location[-1]), names) if len(str(location[-1])) <= 100 else ""
    hint = hint or f"; the keys are {', '.join(names)}"
    where = f" in {dotted_location(location[:-1])}" if len(location) > 1 else ""
    return f"unknown key {shown_value(str(location[-1]))}{where}{hint}"


def _nearest_key(model: type[BaseModel], location: Location) -> str | None:
    near = difflib.get_close_matches(str(location[-1])[:100], _keys(model, location[:-1]), n=1)
    return near[0] if near else None


def _keys(model: type[BaseModel], location: Location) -> list[str]:
    for part in location:
        kind = model.model_fields[str(part)].annotation
        model = next(
            option
            for option in (kind, *get_args(kind))
            if isinstance(option, type) and issubclass(option, BaseModel)
        )
    hidden = model.__dict__.get("not_keys", ())
    return [field.alias or name for name, field in model.model_fields.items() if name not in hidden]
