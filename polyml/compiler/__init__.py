"""The drivers: from a program's syntax to compiled code, stage by stage."""
