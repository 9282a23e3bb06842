"""The rules of the API, each as CEL for the API server and as Python for everybody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

PRESERVE = "x-kubernetes-preserve-unknown-fields"
VALIDATIONS = "x-kubernetes-validations"
INT32_MAX = 2**31 - 1
TOLERANT = "tolerant"  # the pydantic validation context of `read`


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule about `self`.

    `cel` and `holds` give the same verdict, as tests/unit/api/test_verdicts.py checks.
    """

    cel: str
    message: str
    """The mistake, and what to write instead."""
    holds: Callable[[Any], bool] | None
    """The rule in Python. None for a rule about an update (`oldSelf`), which only the API server
    sees."""
    field: str | None = None
    """Field that the rule is about, if it is not about the whole object."""
    message_cel: str | None = None
    """The message as CEL, where only the API server can name the field."""

    def as_crd(self) -> dict[str, Any]:
        path = {"fieldPath": f".{self.field}"} if self.field else {}
        expression = {"messageExpression": self.message_cel} if self.message_cel else {}
        return {"rule": self.cel, "message": self.message, **expression, **path}


class Model(BaseModel):
    """Base of all API types: camelCase outside, no coercion of types (the API server does none)."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _prune(cls, data: Any, info: ValidationInfo) -> Any:
        """Drops nulls, as the API server does for fields that are not nullable: none of ours is.

        A null in a field that nobody knows stays, for the strict reader to reject. A tolerant reader
        drops unknown fields, except where everything is kept as written. A number such as 3.0 becomes
        the integer that kubectl sends.
        """
        if not isinstance(data, dict):
            return data
        known = _aliases(cls)
        is_closed = cls.model_config.get("extra") == "forbid"
        drop_unknown = info.context == TOLERANT and is_closed
        return {
            k: _as_sent(v) if k in known else v
            for k, v in data.items()
            if (v is not None or (is_closed and k not in known)) and (k in known or not drop_unknown)
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        if cls.rules:
            schema[VALIDATIONS] = [rule.as_crd() for rule in cls.rules]
        if cls.model_config.get("extra") == "allow":
            schema[PRESERVE] = True
        return schema


@cache
def _aliases(model: type[BaseModel]) -> frozenset[str | None]:
    """Returns the names of a model's fields in YAML. Collected for each object, they took half of a plan's time."""
    return frozenset(field.alias for field in model.model_fields.values())


def _as_sent(value: Any) -> Any:
    """Returns a number without a fraction as an integer, and a list with such numbers."""
    if isinstance(value, list):
        return [_as_sent(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def without_nulls(value: Any) -> Any:
    """Returns a map without the keys whose value is null, which the API server drops."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class OpenModel(Model):
    """Part of a Kubernetes type: the fields that our rules check.

    All others are kept as written.
    """

    model_config = ConfigDict(extra="allow")
