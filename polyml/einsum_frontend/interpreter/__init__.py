"""An oracle: executes a parsed program instance by instance."""
