"""Files: saved reports and their merging, the baseline, and the settings of a project."""
