"""What a report is made of: data alone, which knows nothing of how it was found.

Read `records`, `leaks`, `timeline`, `report`; `difference` compares two reports.
"""
