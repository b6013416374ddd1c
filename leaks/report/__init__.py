"""The data of a report, independent of how it was found.

Read `records`, `leaks`, `live`, `retainer`, `peak`, `timeline`, then `report`, which has all of
them; `difference` compares two reports.
"""
