"""Build a campaign from its configuration. This module alone knows concrete classes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from evokernel import warm_start
from evokernel.archives import Archive
from evokernel.candidate import Body, Genome, find_module, load_genome
from evokernel.config import Config, SweepConfig
from evokernel.desk import Desk
from evokernel.devices import Device
from evokernel.errors import CandidateError, ConfigError, EvokernelError, SpaceError
from evokernel.evaluators import Evaluator
from evokernel.llm import Model
from evokernel.llm.ledger import Ledger, Price
from evokernel.loop import Campaign
from evokernel.operators import Operator
from evokernel.problem import Problem
from evokernel.proposers import Proposers
from evokernel.reporters import Reporter
from evokernel.search import FIRST, Search
from evokernel.store import Run, Store
from evokernel.sweep import Sweep, genomes
from evokernel.warm_start import Experience

Part = TypeVar("Part")


def resolve(type_name: str, folder: str, contract: type[Part], place: str) -> type[Part]:
    """Return the class that `type: NAME` means: the one in evokernel/<folder>/NAME.py, or `module:Class`."""
    module_name, _, class_name = type_name.partition(":")
    if not class_name:
        module_name = f"evokernel.{folder}.{type_name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (error.name == module_name or module_name.startswith(error.name + ".")):
            raise ConfigError(f"{place} is {type_name!r}; choose one of {', '.join(_choices(folder))}") from None
        raise ConfigError(f"{place} is {type_name!r}, which needs the package {error.name!r}") from None
    if class_name:
        found = getattr(module, class_name, None)
        if not (isinstance(found, type) and issubclass(found, contract)):
            raise ConfigError(f"{place} is {type_name!r}: {module_name} has no {contract.__name__} named {class_name}")
        return found
    own = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, contract)]
    return next(c for c in own if c.__module__ == module_name and not inspect.isabstract(c))


def _choices(folder: str) -> list[str]:
    package = importlib.import_module(f"evokernel.{folder}")
    paths = [p for root in package.__path__ for p in _python_files(root)]
    return sorted(paths)


def _python_files(root: str) -> list[str]:
    from pathlib import Path

    return [p.stem for p in Path(root).glob("*.py") if not p.stem.startswith("_")]


def build(cls: type[Part], arguments: Mapping[str, Any], place: str, **given: Any) -> Part:
    """Construct a part from its section; what its constructor does not take is refused by name."""
    parameters = inspect.signature(cls).parameters
    given = {name: value for name, value in given.items() if name in parameters}
    known = [name for name in parameters if name not in given]
    for name in arguments:
        if name not in known:
            raise ConfigError(f"unknown key {place}.{name}; choose of {', '.join(known) or 'none'}")
    try:
        return cls(**arguments, **given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place}: {error}") from None


def templates(config: Config, problem: Problem) -> list[Genome]:
    """Load the configured spaces, each with its default knobs."""
    return [template(name, problem, f"spaces.{index}") for index, name in enumerate(config.spaces)]


def template(name: str, problem: Problem, place: str) -> Genome:
    try:
        genome = load_genome(find_module(name, "search_spaces"))
        genome.body.require_entry(problem.entry)
    except (CandidateError, SpaceError) as error:
        raise ConfigError(f"{place}: {error}") from None
    if genome.body.space.op != problem.op:
        raise ConfigError(f"{place} is {name!r}, a space for {genome.body.space.op}, not {problem.op}")
    return genome


def seeds(config: Config, problem: Problem) -> list[Genome]:
    found = []
    for index, name in enumerate(config.seeds):
        try:
            genome = load_genome(find_module(name, "seeds"))
            genome.body.require_entry(problem.entry)
        except (CandidateError, SpaceError) as error:
            raise ConfigError(f"seeds.{index}: {error}") from None
        found.append(genome)
    return found


def check_spaces(bodies: list[Genome], problem: Problem, device: Device) -> None:
    """Raise ConfigError when a shape class has no space with a valid genome."""
    import random

    for shape_class in problem.shape_classes():
        context = problem.context(shape_class, device.context())
        reasons = []
        for index, genome in enumerate(bodies):
            try:
                genome.body.space.sample(random.Random(0), context)
            except SpaceError as error:
                reasons.append(f"spaces.{index} ({genome.body.where}): {error}")
        if len(reasons) == len(bodies):
            raise ConfigError(f"no space serves {shape_class.name}: {'; '.join(reasons)}")


def models(config: Config, ledger: Ledger, store: Store) -> list[Model]:
    """Build the models, the cheapest first; the client is imported only if one is configured."""
    from evokernel.llm.scripted import Replay

    built: list[Model] = []
    for index, section in enumerate(config.models):
        if section.replay is not None:
            try:
                run = store.run(section.replay)
            except EvokernelError as error:
                raise ConfigError(f"models.{index}.replay: {error}") from None
            built.append(Replay([c.messages for c in store.conversations(run.id) if c.messages]))
            continue
        from evokernel.llm.model import Endpoint

        built.append(
            Endpoint(
                section.name,
                ledger,
                section.base_url,
                section.key_env,
                Price(section.input_usd, section.output_usd),
                section.timeout,
                section.retries,
                section.backoff,
                section.per_minute,
                section.stream,
                section.extra,
            )
        )
    return sorted(built, key=lambda model: model.output_usd)


def operators(
    config: Config, generation_0: list[Genome], best: Mapping[str, Sequence[Genome]], models: Sequence[Model] = ()
) -> list[tuple[Operator, float]]:
    """Build the operators with their weights; the seeds come before anything else, another run's best before all."""
    seed_class = resolve("seed", "operators", Operator, "operators.seed")  # type: ignore[type-abstract]
    seed = build(seed_class, {}, "operators.seed", genomes=generation_0, best=best)
    built: list[tuple[Operator, float]] = [(seed, FIRST)]
    for name, section in config.operators.items():
        place = f"operators.{name}"
        cls = resolve(section.type or name, "operators", Operator, f"{place}.type")  # type: ignore[type-abstract]
        operator = build(cls, section.model_extra or {}, place, seed=config.seed, models=models)
        operator.name = name
        built.append((operator, section.weight))
    return built


def evaluator(config: Config | SweepConfig, device: Device) -> Evaluator:
    section = config.evaluator
    cls = resolve(section.type, "evaluators", Evaluator, "evaluator.type")  # type: ignore[type-abstract]
    return build(cls, section.model_extra or {}, "evaluator", device=device, baselines=tuple(config.baselines))


def search(
    config: Config,
    problem: Problem,
    device: Device,
    earlier: Experience | None = None,
    models: Sequence[Model] = (),
) -> Search:
    bodies = templates(config, problem)
    check_spaces(bodies, problem, device)
    archive = resolve(config.archive.type, "archives", Archive, "archive.type")  # type: ignore[type-abstract]
    arguments = config.archive.model_extra or {}
    for axis in arguments.get("axes", ()):
        if not any(axis in genome.body.space.knobs for genome in bodies):
            names = sorted({name for genome in bodies for name in genome.body.space.knobs})
            raise ConfigError(f"archive.axes names {axis!r}, which is no knob; choose of {', '.join(names)}")
    build(archive, arguments, "archive")  # refuse a bad section now, not at the first shape class
    built = operators(config, [*bodies, *seeds(config, problem)], earlier.best if earlier else {}, models)
    if earlier:
        earlier.teach([operator for operator, _ in built])
    return Search(problem, bodies, built, lambda: build(archive, arguments, "archive"), device.context(), config.seed)


def campaign(config: Config, store: Store, run: Run, device: Device, reporter: Reporter) -> Campaign:
    problem = config.problem.problem()
    spent = store.spent(run.id)
    ledger = Ledger(config.budget.tokens, config.budget.usd, spent.tokens, spent.usd)
    asked = models(config, ledger, store)
    searched = search(config, problem, device, experience(config, problem, store), asked)
    return Campaign(
        run,
        store,
        searched,
        evaluator(config, device),
        problem,
        config.budget.budget(),
        reporter,
        desk(store, run, searched, ledger, reporter, asked),
    )


def desk(store: Store, run: Run, searched: Search, ledger: Ledger, reporter: Reporter, asked: Sequence[Model]) -> Desk:
    """Give every slow operator a thread."""
    threads = max(1, sum(operator.slow for operator, _ in searched.operators))

    def cancel() -> None:
        for model in asked:
            model.cancelled.set()

    return Desk(store, run, searched, ledger, reporter, Proposers(threads), cancel)


def experience(config: Config, problem: Problem, store: Store) -> Experience | None:
    """Return what the run that `warm_start` names measured."""
    if config.warm_start is None:
        return None
    return warm_start.experience(store, config.warm_start, problem, templates(config, problem))


def sweep_body(config: SweepConfig, problem: Problem) -> Body:
    """Return the space of a sweep: the named template with its knobs limited to the grid, the others to one value."""
    body = template(config.sweep.space, problem, "sweep.space").body
    defaults = {name: [value] for name, value in body.defaults.items()}
    try:
        return body.restricted({**defaults, **config.sweep.knobs}, "sweep.knobs")
    except SpaceError as error:
        raise ConfigError(str(error)) from None


def sweep(config: SweepConfig, body: Body, store: Store, run: Run, device: Device, reporter: Reporter) -> Sweep:
    problem = config.problem.problem()
    grid = genomes(body, problem, device.context())
    return Sweep(run, store, evaluator(config, device), problem, grid, reporter, config.sweep.remeasure_share)


def device_for(config: Config | SweepConfig) -> Device:
    section = config.evaluator
    cls = resolve(section.type, "evaluators", Evaluator, "evaluator.type")  # type: ignore[type-abstract]
    try:
        return cls.find_device(section.device, section.model_extra or {})
    except EvokernelError as error:
        raise ConfigError(str(error)) from None
