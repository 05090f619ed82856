"""What the threads of one block do together: phases and barriers, shared memory, copies, whole tiles."""
