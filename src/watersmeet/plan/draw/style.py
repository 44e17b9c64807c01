"""Colours, and sizes of text in points."""

from watersmeet.program.operators import Purpose

COLOURS = {
    Purpose.TUPLES: "#0072b2",
    Purpose.KEYS: "#d98200",
    Purpose.FILTERS: "#b2528a",
    Purpose.SYNC: "#00875f",
    Purpose.RESULTS: "#c8400a",
    Purpose.WATERMARKS: "#7d848c",
    Purpose.MIGRATION: "#5b4fa2",
    Purpose.AGREEMENT: "#3f8f9b",
    Purpose.OBSERVATIONS: "#9a7b4f",
}

INK, SOFT_INK = "#1d2733", "#5a6673"
PAPER = "#ffffff"
LINE, STRONG_LINE, PANEL_LINE = "#b7c0ca", "#8d99a6", "#dde3e9"
SITE_FILL, QUERY_SITE_FILL = "#f3f6fa", "#fff4e8"
PANEL_FILL, JOIN_FILL = "#fafbfc", "#e3ebf4"

TITLE_SIZE, NAME_SIZE, TEXT_SIZE, SMALL_SIZE, TINY_SIZE = 14.0, 11.0, 8.5, 7.5, 6.5
