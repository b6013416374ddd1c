"""Reporters: one file for each output, with pure functions from a report to text."""
