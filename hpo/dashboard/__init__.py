"""Figures of a study: plotly figures for notebooks, and the HTML report that shows them."""
