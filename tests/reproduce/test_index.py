"""The page of all figures has the verdict of every experiment as the paper's page has it, and a plot that is there."""

import re

import figures

from watersmeet.reproduce import EXPERIMENTS


def test_every_experiment_has_a_plot_and_a_verdict() -> None:
    found = {name: text for page in figures.PAGES for name, text in figures.verdicts(page).items()}
    assert sorted(found) == sorted(experiment.name for experiment in EXPERIMENTS)
    for name, verdict in found.items():
        assert re.match(r"(matches|partly|differs|other measure|ours|as table)\b", verdict), name
        assert figures.INDEX.with_name(f"{name}.svg").exists(), name


def test_the_page_of_all_figures_says_what_the_others_say() -> None:
    assert figures.INDEX.read_text("utf-8") == figures.index(), "run python scripts/figures.py --write"


def test_a_verdict_is_where_its_plot_is() -> None:
    for page in figures.PAGES:
        for section in re.split(r"^## ", (figures.DOCS / page).read_text("utf-8"), flags=re.MULTILINE):
            plots = re.findall(r"^!\[.*?\]\(reproduce/(.+?)\.svg\)", section, re.MULTILINE)
            assert re.findall(r"^\*\*Verdict\*\* \(`(.+?)`\)", section, re.MULTILINE) == plots, page
