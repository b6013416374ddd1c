"""The data of a report, independent of how it was found.

Read `records`, `leaks`, `timeline`, `report`; `difference` compares two reports.
"""
