"""The rewrite rules, one idea per file, in folders by what they are about; table.py puts them in order."""
