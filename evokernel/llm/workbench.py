"""Answer tool calls, a model's or a client's: read the arguments, apply edits, say what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evokernel.llm import library
from evokernel.llm.patch import PatchError, patched
from evokernel.llm.tools import MEASURING, SCHEMAS, Draft, ToolError, Tools

NAMES = tuple(schema["function"]["name"] for schema in SCHEMAS)
LONGEST = 16_000  # characters of one answer
Context = Callable[[str], Mapping[str, Any]]  # the names that a shape class's constraints may use


@dataclass
class Workbench:
    """The tools with what they need to make a draft of an edit."""

    tools: Tools
    entry: str
    context: Context
    operator: str
    shape_class: str | None = None  # that every draft is for; its parent's when None

    def use(self, name: str, arguments: Mapping[str, Any] | None) -> str:
        """Answer a call of any tool but submit, or raise ToolError with what to mend."""
        arguments = self.known(name, arguments)
        match name:
            case "leaders":
                return self.tools.leaders(_text(arguments, "shape_class") or self.shape_class)
            case "lineage":
                return self.tools.lineage(_number(arguments, "candidate"))
            case "source":
                return self.tools.candidate(_number(arguments, "candidate")).genome.source
            case "failures":
                parent = _number(arguments, "parent") if arguments.get("parent") is not None else None
                return "\n".join(self.tools.failures(parent)) or "nothing has failed"
            case "lessons":
                return "\n".join(self.tools.lessons()) or "nothing has been learnt yet"
            case "knowledge":
                return library.answer(_text(arguments, "query"))
            case "compile":
                return self.tools.compile(self.draft(arguments))[:LONGEST]
        return self.tools.measure(self.draft(arguments), MEASURING[name]).text()[:LONGEST]

    def known(self, name: str, arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if name not in NAMES:
            raise ToolError(f"there is no tool {name!r}; choose one of {', '.join(NAMES)}")
        if arguments is None:
            raise ToolError("the arguments are no JSON object; write them again")
        return arguments

    def draft(self, arguments: Mapping[str, Any]) -> Draft:
        """Apply an edit to the parent that it names."""
        parent = self.tools.candidate(_number(arguments, "parent"))
        where = self.shape_class or parent.shape_class
        try:
            genome = patched(parent.genome, _text(arguments, "edits"), self.entry, self.context(where))
        except PatchError as error:
            raise ToolError(str(error)) from None
        note, prediction = _text(arguments, "note"), _text(arguments, "prediction")
        return Draft(genome, where, (parent.id,), note, prediction, self.operator)


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise ToolError(f"{name} is {value!r}; it must be text")
    return value


def _number(arguments: Mapping[str, Any], name: str) -> int:
    value = arguments.get(name)
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ToolError(f"{name} is {value!r}; it must be a candidate's number")
    return value
