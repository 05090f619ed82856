"""polyml's own scheduler: loops as solutions of small integer programs over the dependences' generators."""
