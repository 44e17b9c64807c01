"""Experiments of the RJoin paper."""

from watersmeet.reproduce.experiment import Experiment
from watersmeet.reproduce.rjoin import churn, fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9

EXPERIMENTS: tuple[Experiment, ...] = (
    fig2.EXPERIMENT,
    fig3.EXPERIMENT,
    fig4.EXPERIMENT,
    fig5.EXPERIMENT,
    fig6.EXPERIMENT,
    fig7.EXPERIMENT,
    fig8.EXPERIMENT,
    fig9.EXPERIMENT,
    churn.EXPERIMENT,
)
