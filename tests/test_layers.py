"""Imports go down only, each heavy library has one home, and importing evokernel does nothing visible."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "evokernel"

# Highest first; a module may import only from rows below its own, or from its own package.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"dashboard"},
    {"assemble"},
    {"config"},
    {
        "loop",
        "mcp",
        "export",
        "comparison",
        "sweep",
        "planning",
        "tracing",
        "huggingface",
        "warm_start",
        "dataset",
        "lifecycle",
    },
    {"desk"},
    {"toolbox"},
    {"driver"},
    {"search", "evaluators", "store", "reporters", "standalone", "dispatch", "proposers"},
    {"worker"},
    {"operators", "bench"},
    {"archives", "backends", "landscape", "llm"},
    {"budget", "run_folder"},
    {"devices"},
    {"measurement", "roofline"},
    {"candidate"},
    {"problem", "space"},
    {"expressions"},
    {"errors", "syntax"},
    {"trace_hook"},  # runs in the user's program: imports nothing of ours
]

HOMES = {
    "optuna": {"operators/tune.py", "dashboard/data/importance.py"},
    "ray": {"evaluators/ray.py", "evaluators/_ray_cluster.py"},
    "sqlalchemy": {"store/"},
    "alembic": {"store/"},
    "openai": {"llm/model.py"},
    "httpx2": {"llm/model.py"},
    "mcp": {"mcp.py"},
    "typer": {"cli/"},
    "pydantic": {"config.py"},
    "pyarrow": {"landscape.py"},
    "matplotlib": {"comparison.py"},
    **{
        name: {"dashboard/"}
        for name in ("dash", "dash_ag_grid", "dash_cytoscape", "plotly", "flask", "pygments", "waitress")
    },
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, wherever in it, except for annotations alone."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return names


def layer(part: str) -> int:
    return next((i for i, row in enumerate(LAYERS) if part in row), -1)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_layers(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    assert layer(part) >= 0, f"{part} is in no layer; place it in LAYERS"
    for name in imported(path):
        pieces = name.split(".")
        if pieces[0] != "evokernel" or len(pieces) < 2 or layer(pieces[1]) < 0 or pieces[1] == part:
            continue
        assert layer(pieces[1]) > layer(part), f"{part} imports {name}, which is not below it"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_heavy_library_is_imported_in_its_home_alone(path):
    place = str(path.relative_to(PACKAGE))
    for name in imported(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or any(place.startswith(home) for home in homes), f"{place} imports {name}"


def test_importing_evokernel_loads_nothing_heavy_and_prints_nothing():
    heavy = "{'torch', 'optuna', 'ray', 'sqlalchemy', 'numba'}"
    code = f"import evokernel, evokernel.cli, sys; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
