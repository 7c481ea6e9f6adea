"""The space that knobs span: values in order, conditions that silence a knob, constraints with reasons."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from evokernel import expressions
from evokernel.errors import SpaceError

KnobValue: TypeAlias = int | float | bool | str
Knobs: TypeAlias = dict[str, KnobValue]

# Random draws before an empty or nearly empty space is searched in full. At the 1% of valid genomes that the
# tightest template has, 2,000 draws miss with probability 2e-9.
DRAWS = 2000


@dataclass(frozen=True)
class SearchSpace:
    """Knobs with their values, when each one matters, and which combinations can work at all."""

    op: str
    backend: str
    knobs: Mapping[str, tuple[KnobValue, ...]]
    conditions: Mapping[str, str] = field(default_factory=dict)
    constraints: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_literal(cls, literal: Any, where: str) -> SearchSpace:
        """Build a space from a module's SPACE, or raise SpaceError naming `where`, the value and the choices."""
        if not isinstance(literal, dict):
            raise SpaceError(f"{where}: SPACE is {type(literal).__name__}; it must be a literal dict")
        known = {"op", "backend", "knobs", "conditions", "constraints"}
        if unknown := sorted(set(literal) - known):
            raise SpaceError(f"{where}: SPACE has unknown key {unknown[0]!r}; choose of {', '.join(sorted(known))}")
        if missing := sorted({"op", "backend", "knobs"} - set(literal)):
            raise SpaceError(f"{where}: SPACE lacks {missing[0]!r}")
        knobs = literal["knobs"]
        if not isinstance(knobs, dict) or not knobs:
            raise SpaceError(f"{where}: SPACE['knobs'] is {knobs!r}; it must name at least one knob")
        for name, values in knobs.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise SpaceError(f"{where}: knob {name!r} is no name that an expression could use")
            if not isinstance(values, list | tuple) or not values:
                raise SpaceError(f"{where}: knob {name!r} is {values!r}; it needs a list of values")
            for value in values:
                if not isinstance(value, int | float | str):
                    raise SpaceError(f"{where}: knob {name!r} lists {value!r}; values are numbers, booleans or strings")
            if len(set(values)) != len(values):  # 1, 1.0 and True are one value to Python
                raise SpaceError(f"{where}: knob {name!r} lists a value twice: {values!r}")
        conditions, constraints = literal.get("conditions", {}), literal.get("constraints", {})
        for key, section in (("conditions", conditions), ("constraints", constraints)):
            if not isinstance(section, dict) or not all(isinstance(t, str) for pair in section.items() for t in pair):
                raise SpaceError(f"{where}: SPACE[{key!r}] is {section!r}; it must be a dict of strings")
        for name in conditions:
            if name not in knobs:
                raise SpaceError(f"{where}: a condition names {name!r}, which is no knob; knobs: {', '.join(knobs)}")
        for text in (*conditions.values(), *constraints):
            try:
                expressions.function(text)
            except SpaceError as error:
                raise SpaceError(f"{where}: {error}") from None
        return cls(
            literal["op"],
            literal["backend"],
            {name: tuple(values) for name, values in knobs.items()},
            conditions,
            constraints,
        )

    def to_literal(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "backend": self.backend,
            "knobs": {name: list(values) for name, values in self.knobs.items()},
            "conditions": dict(self.conditions),
            "constraints": dict(self.constraints),
        }

    def check_names(self, knobs: Mapping[str, KnobValue], where: str) -> None:
        """Raise SpaceError unless every knob has exactly one of its listed values."""
        for name in self.knobs:
            if name not in knobs:
                raise SpaceError(f"{where}: KNOBS lacks {name!r}")
        for name, value in knobs.items():
            if name not in self.knobs:
                raise SpaceError(f"{where}: unknown knob {name!r}; knobs: {', '.join(self.knobs)}")
            if not any(value == v and type(value) is type(v) for v in self.knobs[name]):
                choices = ", ".join(map(repr, self.knobs[name]))
                raise SpaceError(f"{where}: knob {name} is {value!r}; choose one of {choices}")

    def active(self, name: str, knobs: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
        condition = self.conditions.get(name)
        return condition is None or bool(expressions.evaluate(condition, {**context, **knobs}))

    def canonical(self, knobs: Mapping[str, KnobValue], context: Mapping[str, Any]) -> Knobs:
        """Pin every silenced knob to its first value, so that equal kernels are equal genomes."""
        result: Knobs = {name: knobs[name] for name in self.knobs}
        while True:  # a condition may read a knob that another condition pins; pinning only ever adds up, so it ends
            before = dict(result)
            for name in self.conditions:
                if not self.active(name, result, context):
                    result[name] = self.knobs[name][0]
            if result == before:
                return result

    def broken_constraint(self, knobs: Mapping[str, KnobValue], context: Mapping[str, Any]) -> str | None:
        """Return the reason of the first constraint that does not hold, or None."""
        values = {**context, **knobs}
        for text, reason in self.constraints.items():
            if not expressions.evaluate(text, values):
                return f"{reason} ({text})"
        return None

    def valid(self, knobs: Mapping[str, KnobValue], context: Mapping[str, Any]) -> bool:
        return self.broken_constraint(knobs, context) is None

    def sample(self, rng: random.Random, context: Mapping[str, Any]) -> Knobs:
        """Draw a valid genome uniformly from the canonical ones met by rejection; SpaceError when there is none."""
        for _ in range(DRAWS):
            knobs = self.canonical({n: rng.choice(v) for n, v in self.knobs.items()}, context)
            if self.valid(knobs, context):
                return knobs
        found = next(self.enumerate(context), None)
        if found is None:
            raise SpaceError(self.why_empty(context))
        return found

    def enumerate(self, context: Mapping[str, Any]) -> Iterator[Knobs]:
        """Yield every valid canonical genome once, in a fixed order.

        Constraints are tested as soon as their last knob is set, so that a tight space costs little.
        """
        order = list(self.knobs)
        ready: list[list[str]] = [[] for _ in order]
        for text in self.constraints:
            used = [order.index(n) for n in expressions.names(text) if n in self.knobs]
            ready[max(used, default=0)].append(text)
        # A silenced knob is pinned only once its condition can be read, so early pruning is sound only for
        # constraints whose knobs have no condition; the rest wait for the end.
        late = [t for t in self.constraints if expressions.names(t) & self.conditions.keys()]
        seen: set[tuple[KnobValue, ...]] = set()

        def walk(position: int, chosen: Knobs) -> Iterator[Knobs]:
            if position == len(order):
                knobs = self.canonical(chosen, context)
                key = tuple(knobs.values())
                values = {**context, **knobs}
                if key not in seen and all(expressions.evaluate(t, values) for t in late):
                    seen.add(key)
                    yield knobs
                return
            name = order[position]
            for value in self.knobs[name]:
                chosen[name] = value
                values = {**context, **chosen}
                if all(expressions.evaluate(t, values) for t in ready[position] if t not in late):
                    yield from walk(position + 1, chosen)
            del chosen[name]

        return walk(0, {})

    def neighbours(self, knobs: Mapping[str, KnobValue], context: Mapping[str, Any]) -> list[Knobs]:
        """Return the valid genomes one step away: an ordinal knob moves by one, a categorical one to any value."""
        result: list[Knobs] = []
        for name, values in self.knobs.items():
            if not self.active(name, knobs, context):
                continue
            here = values.index(knobs[name])
            near = [here - 1, here + 1] if self.is_ordinal(name) else [i for i in range(len(values)) if i != here]
            for index in near:
                if 0 <= index < len(values):
                    step = self.canonical({**knobs, name: values[index]}, context)
                    if step != dict(knobs) and step not in result and self.valid(step, context):
                        result.append(step)
        return result

    def is_ordinal(self, name: str) -> bool:
        """Numbers are ordered; booleans and strings are not."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.knobs[name])

    def size(self) -> int:
        """Count the combinations before conditions and constraints."""
        return math.prod(len(values) for values in self.knobs.values())

    def restricted(self, grid: Mapping[str, list[KnobValue]], where: str) -> SearchSpace:
        """Return this space with some knobs limited to the given values; these keep the order they have here."""
        for name, values in grid.items():
            if name not in self.knobs:
                raise SpaceError(f"{where}: unknown knob {name!r}; knobs: {', '.join(self.knobs)}")
            if len(set(values)) != len(values):
                raise SpaceError(f"{where}: knob {name!r} lists a value twice: {values!r}")
            for value in values:
                if not any(value == v and type(value) is type(v) for v in self.knobs[name]):
                    choices = ", ".join(map(repr, self.knobs[name]))
                    raise SpaceError(f"{where}: knob {name} has no value {value!r}; choose of {choices}")
        knobs = {name: tuple(v for v in values if v in grid.get(name, values)) for name, values in self.knobs.items()}
        return SearchSpace(self.op, self.backend, knobs, self.conditions, self.constraints)

    def why_empty(self, context: Mapping[str, Any]) -> str:
        """Say which constraint admits nothing, alone or with the others."""
        for text, reason in self.constraints.items():
            involved = [n for n in self.knobs if n in expressions.names(text)]
            combinations = itertools.product(*(self.knobs[n] for n in involved))
            hopeful = (dict(zip(involved, c, strict=True)) for c in combinations)
            if not any(expressions.evaluate(text, {**context, **knobs}) for knobs in hopeful):
                used = {n: context[n] for n in sorted(expressions.names(text)) if n in context}
                where = ", ".join(f"{n}={v}" for n, v in used.items()) or "any context"
                return f"the space is empty: {reason} ({text} never holds with {where})"
        return "the space is empty: each constraint can be met alone, but not all of them together"
