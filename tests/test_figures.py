"""Published figures are recomputed from raw samples, and the tables in the documents come from them."""

import json

import pytest

from benchmarks import figures, tables


def test_every_published_figure_is_recomputed_and_its_target_is_readable():
    found = list(figures.rows())
    assert {"driver_overhead_ms", "resume_10k_s", "help_s", "cpu_best_vs_sdpa", "cpu_best_vs_random"} <= {
        r.name for r in found
    }
    for row in found:
        assert row.value >= 0
        assert row.met in (True, False)


def test_a_figure_measured_by_another_evaluator_is_marked_stale(tmp_path):
    figure = {"name": "x", "unit": "s", "target": "<= 2", "formula": "median", "samples": [1, 3, 2], "note": ""}
    provenance = {"evaluator": "another", "templates": {}}
    (tmp_path / "x.json").write_text(json.dumps({"provenance": provenance, "figures": [figure]}))
    (row,) = figures.rows(tmp_path)
    assert (row.value, row.met, row.stale) == (2, True, True)


@pytest.mark.parametrize("document", ["README.md", "docs/trust.md"])
def test_the_tables_in_the_documents_are_those_of_the_results_and_tests(document):
    text = (tables.ROOT / document).read_text()
    assert tables.rewritten(text, list(figures.rows())) == text


def test_the_worst_class_counts_in_a_figure_over_classes():
    classes = {"a": {"champion": [2.0], "random": [1.0]}, "b": {"champion": [3.0], "random": [2.0]}}
    assert figures.FORMULAS["champion_over_median_random"](classes) == pytest.approx(1.5)
