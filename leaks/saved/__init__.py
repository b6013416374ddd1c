"""Files: saved reports and merged ones, the baseline, and the settings of a project."""
