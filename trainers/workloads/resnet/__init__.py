"""Residual networks on images."""
