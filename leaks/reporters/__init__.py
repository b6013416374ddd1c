"""Reporters: one file for each output, pure functions from a report to text."""
