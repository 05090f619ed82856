"""The rewrite rules, one idea per file; rewrite.py holds the table that puts them in order."""
