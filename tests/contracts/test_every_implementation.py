"""Every implementation of an extension point is tested by the suite of its contract."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from evokernel.archives import Archive
from evokernel.backends import Backend
from evokernel.evaluators import Evaluator
from evokernel.operators import Operator

TESTS = Path(__file__).parents[1]
PACKAGE = Path(__file__).parents[2] / "evokernel"
CONTRACTS = {
    "archives": (Archive, "ArchiveContract"),
    "backends": (Backend, "BackendContract"),
    "evaluators": (Evaluator, "EvaluatorContract"),
    "operators": (Operator, "OperatorContract"),
}


def implementations():
    for folder, (base, contract) in CONTRACTS.items():
        for path in sorted((PACKAGE / folder).glob("[!_]*.py")):
            module = importlib.import_module(f"evokernel.{folder}.{path.stem}")
            own = [c for c in vars(module).values() if getattr(c, "__module__", "") == module.__name__]
            for cls in own:
                if isinstance(cls, type) and issubclass(cls, base) and not inspect.isabstract(cls):
                    yield pytest.param(cls, contract, id=f"{folder}/{cls.__name__}")


def suites(contract):
    """Yield the names that each test class which inherits a contract, directly or not, makes use of."""
    for path in sorted(TESTS.rglob("test_*.py")):
        heirs = {contract}
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and heirs & {ast.unparse(b).split(".")[-1] for b in node.bases}:
                heirs.add(node.name)
                yield {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


@pytest.mark.parametrize(("cls", "contract"), list(implementations()))
def test_an_implementation_inherits_the_suite_of_its_contract(cls, contract):
    assert any(cls.__name__ in names for names in suites(contract)), f"no test class with {contract} builds {cls}"
