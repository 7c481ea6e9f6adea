"""The typed mirror of a campaign's YAML: defaults, refused unknown keys, overrides, and one-line errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from evokernel import devices
from evokernel.budget import Budget
from evokernel.errors import ConfigError
from evokernel.problem import Problem, Workload
from evokernel.space import KnobValue

BUILT_IN = Path(__file__).parent / "configs"
DEFAULT_STORE = "sqlite:///runs/evokernel.db"


def _seconds(value: Any) -> Any:
    """Read 90, "90s", "30m", "2h" or "1h30m" as seconds."""
    if not isinstance(value, str):
        return value
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", value.strip())
    if not parts or not any(parts.groups()):
        raise ValueError("write seconds, or a duration such as 90s, 30m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + seconds


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Row(Section):
    """One workload. `seq` sets both lengths; `kv_heads` is `heads` unless given."""

    batch: int = Field(1, ge=1)
    heads: int = Field(ge=1)
    kv_heads: int | None = Field(None, ge=1)
    seq: int | None = Field(None, ge=1)
    seq_q: int | None = Field(None, ge=1)
    seq_kv: int | None = Field(None, ge=1)
    head_dim: int = Field(ge=1)
    causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float | None = Field(None, gt=0)
    weight: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _lengths(self) -> Row:
        if (self.seq is None) == (self.seq_q is None or self.seq_kv is None):
            raise ValueError("give either seq, or both seq_q and seq_kv")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is no multiple of kv_heads={self.kv_heads}")
        return self

    def workload(self) -> Workload:
        return Workload(
            self.batch,
            self.heads,
            self.kv_heads or self.heads,
            self.seq_q or self.seq or 0,
            self.seq_kv or self.seq or 0,
            self.head_dim,
            self.causal,
            self.window,
            self.softcap,
            self.weight,
        )


class Grid(Section):
    """All combinations. Batch follows from `tokens` (batch × seq) and heads from `hidden` (heads × head_dim)."""

    head_dim: Annotated[list[int], BeforeValidator(_listed)]
    seq: Annotated[list[int], BeforeValidator(_listed)]
    causal: Annotated[list[bool], BeforeValidator(_listed)] = [False, True]
    tokens: int | None = Field(None, ge=1)
    batch: int | None = Field(None, ge=1)
    hidden: int | None = Field(None, ge=1)
    heads: int | None = Field(None, ge=1)
    kv_heads: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _sizes(self) -> Grid:
        if (self.tokens is None) == (self.batch is None):
            raise ValueError("give either tokens or batch")
        if (self.hidden is None) == (self.heads is None):
            raise ValueError("give either hidden or heads")
        return self

    def workloads(self) -> list[Workload]:
        result = []
        for head_dim, seq, causal in itertools.product(self.head_dim, self.seq, self.causal):
            batch = self.batch or max(1, (self.tokens or 0) // seq)
            heads = self.heads or max(1, (self.hidden or 0) // head_dim)
            result.append(Workload(batch, heads, self.kv_heads or heads, seq, seq, head_dim, causal))
        return result


class Workloads(Section):
    """A grid, rows, or both."""

    grid: Grid | None = None
    rows: list[Row] = []

    def workloads(self) -> tuple[Workload, ...]:
        found = (self.grid.workloads() if self.grid else []) + [row.workload() for row in self.rows]
        return tuple({w.name: w for w in found}.values())


class ProblemSection(Section):
    op: Literal["forward"] = "forward"
    dtype: Literal["fp32", "bf16", "fp16"] = "bf16"
    workloads: Workloads
    held_out: Workloads = Workloads()
    determinism: Literal["bitwise", "spread"] = "spread"

    @model_validator(mode="after")
    def _some(self) -> ProblemSection:
        if not self.workloads.workloads():
            raise ValueError("workloads names none; give a grid or rows")
        return self

    def problem(self) -> Problem:
        return Problem(
            self.op, self.dtype, self.workloads.workloads(), self.held_out.workloads(), determinism=self.determinism
        )


class ArchiveSection(BaseModel):
    """`type` names a class; the other keys are its arguments (assemble checks them)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: str = "elites"


class OperatorSection(BaseModel):
    """`weight` is the operator's share of proposals; `type` defaults to its name; the rest are its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: str | None = None
    weight: float = Field(1.0, ge=0)


class EvaluatorSection(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    type: str = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"


class ModelSection(Section):
    """A language model behind an OpenAI-compatible URL, or the stored conversations of a run played again.

    The key itself stands in the environment, never here: a configuration is stored with its run.
    """

    name: str = Field(min_length=1)
    base_url: str | None = Field(None, pattern=r"^https?://[^@\s]+$")
    key_env: str = Field("OPENAI_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    input_usd: float = Field(0.0, ge=0)  # per million tokens
    output_usd: float = Field(0.0, ge=0)
    timeout: Seconds = 300.0
    retries: int = Field(4, ge=0)
    backoff: Seconds = 1.0
    per_minute: float | None = Field(None, gt=0)
    stream: bool = True
    extra: dict[str, Any] = {}  # temperature, reasoning_effort, ...: sent as they are
    replay: str | None = None

    @model_validator(mode="after")
    def _no_secrets(self) -> ModelSection:
        if found := {name.lower() for name in self.extra} & {"api_key", "authorization", "extra_headers"}:
            raise ValueError(f"extra names {found.pop()}; a key stands in the environment, under key_env")
        return self


class BudgetSection(Section):
    """Hard caps; what is absent is unlimited."""

    wall: Seconds | None = None
    evaluations: int | None = Field(None, ge=1)
    gpu: Seconds | None = None
    usd: float | None = Field(None, ge=0)
    tokens: int | None = Field(None, ge=0)
    verify_share: float = Field(0.15, ge=0, lt=1)

    @model_validator(mode="after")
    def _bounded(self) -> BudgetSection:
        if self.wall is None and self.evaluations is None and self.gpu is None:
            raise ValueError("give at least one of wall, evaluations, gpu: a campaign must end")
        return self

    def budget(self) -> Budget:
        return Budget(self.wall, self.evaluations, self.gpu, self.usd, self.tokens, self.verify_share)


class Config(Section):
    """A whole campaign."""

    problem: ProblemSection
    spaces: list[str] = Field(min_length=1)
    seeds: list[str] = []
    operators: dict[str, OperatorSection] = {
        "tune": OperatorSection(weight=1.0),
        "mutate": OperatorSection(weight=1.0),
    }
    models: list[ModelSection] = []
    archive: ArchiveSection = ArchiveSection()
    evaluator: EvaluatorSection = EvaluatorSection()
    baselines: list[str] = Field(["sdpa"], min_length=1)
    budget: BudgetSection
    store: str = DEFAULT_STORE
    seed: int = 0
    warm_start: str | None = None  # a run of the same database, whose records the search begins with


class SweepSection(Section):
    """A sub-grid of one space; a knob that is not named keeps its default."""

    space: str
    knobs: dict[str, Annotated[list[KnobValue], BeforeValidator(_listed), Field(min_length=1)]] = Field(min_length=1)
    remeasure_share: float = Field(0.05, ge=0, le=1)


class SweepConfig(Section):
    """A whole sweep: what is measured, and on what."""

    problem: ProblemSection
    sweep: SweepSection
    evaluator: EvaluatorSection = EvaluatorSection()
    baselines: list[str] = Field(["sdpa"], min_length=1)
    store: str = DEFAULT_STORE


Mirror = TypeVar("Mirror", bound=Section)


def locate(name: str) -> Path:
    """Find a configuration: the path given, or a built-in of that name (with or without .yaml), or auto: by the GPU."""
    if name == "auto":
        name = _for_this_machine()
    for path in (Path(name), BUILT_IN / name, BUILT_IN / f"{name}.yaml"):
        if path.is_file():
            return path
    names = ", ".join(sorted(p.name for p in BUILT_IN.glob("*.yaml")))
    raise ConfigError(f"{name}: no such file, and no built-in configuration of that name; choose one of {names}")


def _for_this_machine() -> str:
    """Return the built-in configuration for the first GPU, or the CPU's."""
    found = devices.gpus()
    if not found:
        return "cpu.yaml"
    for model in ("H200", "H100", "A100"):
        if model in found[0].model:
            return f"{model.lower()}.yaml"
    return "h100.yaml" if found[0].arch == 90 else "a100.yaml"


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, apply `key.sub=value` overrides, and validate; ConfigError names file, key, value, choices."""
    return load_as(Config, path, overrides)


def load_as(model: type[Mirror], path: Path, overrides: Sequence[str] = ()) -> Mirror:
    """Read a file that `model` mirrors, as load() reads a campaign's."""
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {type(data).__name__}; expected keys {', '.join(model.model_fields)}")
    for override in overrides:
        _apply(data, override)
    return _validate(model, data, str(path))


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"-o {override}: write -o key.sub=value")
    *parents, last = key.split(".")
    for parent in parents:
        if not isinstance(data.setdefault(parent, {}), dict):
            raise ConfigError(f"-o {override}: {parent} is {data[parent]!r}, which has no keys below it")
        data = data[parent]
    try:
        data[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"-o {override}: {text!r} is not a YAML value") from None


def validate(data: dict[str, Any], where: str) -> Config:
    return _validate(Config, data, where)


def _validate(model: type[Mirror], data: dict[str, Any], where: str) -> Mirror:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_one_line(error, model)}") from None


def _one_line(error: ValidationError, model: type[Section]) -> str:
    """Turn the first problem into one line: the key, the value, the choices."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key {place}; {_choices(first['loc'], model)}"
    if first["type"] == "missing":
        return f"{place} is missing"
    value = repr(first["input"]) if not isinstance(first["input"], dict) else "given"
    return f"{place} is {value}: {first['msg'].removeprefix('Value error, ')}"


def _choices(location: tuple[int | str, ...], root: type[Section]) -> str:
    """List the keys that exist beside an unknown one."""
    model: Any = root
    for part in location[:-1]:
        annotation = model.model_fields[part].annotation if part in getattr(model, "model_fields", {}) else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        inner = [a for a in candidates if isinstance(a, type) and issubclass(a, BaseModel)]
        model = inner[0] if inner else model
    return f"choose of {', '.join(model.model_fields)}"
