"""How much each knob decides about being among the best: optuna's PED-ANOVA over the latest candidates of a class."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from evokernel.dashboard.data.follow import Snapshot
from evokernel.dashboard.data.landscape import varied

optuna.logging.set_verbosity(optuna.logging.ERROR)

LATEST = 400  # trials: more change little, and cost 0.7 ms each
FEWEST = 8


def importances(snapshot: Snapshot, shape_class: str) -> list[tuple[str, float]]:
    """Return knobs with their shares, the most important first; empty before eight scored candidates.

    A knob that some candidates lack has no share: its effect cannot be told from that of the choice it hangs on.
    """
    found: list[tuple[str, float]] = snapshot.remember(
        ("importance", shape_class), lambda: _shares(snapshot, shape_class), slack=0.02
    )
    return found


def _shares(snapshot: Snapshot, shape_class: str) -> list[tuple[str, float]]:
    scored = [e for e in snapshot.parts[shape_class].entries if e.score is not None][-LATEST:]
    values: dict[str, list[Any]] = {
        name: sorted({e.knobs[name] for e in scored}, key=str)
        for name in varied(snapshot, shape_class)
        if scored and all(name in e.knobs for e in scored)
    }
    distributions = {name: CategoricalDistribution(found) for name, found in values.items() if len(found) > 1}
    if len(scored) < FEWEST or not distributions:
        return []
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [
            optuna.create_trial(
                params={name: e.knobs[name] for name in distributions}, distributions=dict(distributions), value=e.score
            )
            for e in scored
        ]
    )
    shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return sorted(shares.items(), key=lambda pair: -pair[1])
