"""Figures of a study: Plotly figures for notebooks, and the HTML report that shows them."""
