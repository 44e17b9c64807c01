"""Experiments of PIER: applications (pier.txt, 1.2), joins (4.3), work shared between aggregate queries (5)."""

from watersmeet.reproduce.experiment import Experiment
from watersmeet.reproduce.pier import (
    centralised,
    churn,
    fig1_1,
    fig4_16,
    fig4_17,
    fig4_18,
    fig4_19,
    fig4_20,
    fig4_21,
    fig5_3,
    fig5_4,
    fig5_5,
    fig5_6,
    fig5_7,
    table5_1,
    table5_2,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    fig1_1.EXPERIMENT,
    fig4_16.EXPERIMENT,
    fig4_17.EXPERIMENT,
    fig4_18.EXPERIMENT,
    fig4_19.EXPERIMENT,
    fig4_20.EXPERIMENT,
    fig4_21.EXPERIMENT,
    centralised.EXPERIMENT,
    churn.EXPERIMENT,
    table5_1.EXPERIMENT,
    table5_2.EXPERIMENT,
    fig5_3.EXPERIMENT,
    fig5_4.EXPERIMENT,
    fig5_5.EXPERIMENT,
    fig5_6.EXPERIMENT,
    fig5_7.EXPERIMENT,
)
