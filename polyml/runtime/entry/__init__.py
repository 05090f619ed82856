"""The function that Python calls: arguments checked and turned into addresses, the host function, results."""
